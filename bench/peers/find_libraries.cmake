# SPDX-License-Identifier: Apache-2.0
# Which of the libraries that the benchmark compares with are here. For each: bench_<library>_missing is the reason why
# not, empty when it is; bench_<library>_version. VPMM_BENCH_PEERS is searched before the system.
set(VPMM_BENCH_PEERS ${PROJECT_SOURCE_DIR}/build/peers
    CACHE PATH "Folder with more libraries to compare with, as pip install --target fills it")
find_program(bench_python python3)

# The folder of a Python package, without importing it; empty: there is none.
function(bench_python_package package folder)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env PYTHONPATH=${VPMM_BENCH_PEERS} ${bench_python} -c
            "import importlib.util as u; s = u.find_spec('${package}'); print(list(s.submodule_search_locations)[0])"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${folder} "${found}" PARENT_SCOPE)
endfunction()

# CUDA's runtime: of a toolkit, or of the wheels that PyTorch brings along.
bench_python_package(nvidia bench_nvidia)
find_path(bench_cuda_include cuda_runtime_api.h
          HINTS ${VPMM_BENCH_PEERS}/nvidia/cu13/include /usr/local/cuda/include ${bench_nvidia}/cu13/include)
find_library(bench_cudart NAMES cudart libcudart.so.13 libcudart.so.12
             HINTS ${VPMM_BENCH_PEERS}/nvidia/cu13/lib /usr/local/cuda/lib64 ${bench_nvidia}/cu13/lib)

find_path(bench_mimalloc_include mimalloc.h HINTS ${VPMM_BENCH_PEERS}/include)
find_library(bench_mimalloc_library mimalloc HINTS ${VPMM_BENCH_PEERS}/lib)
set(bench_mimalloc_missing "")
if(NOT bench_mimalloc_include OR NOT bench_mimalloc_library)
  set(bench_mimalloc_missing "its header or its library is not installed")
endif()

bench_python_package(torch bench_torch)
set(bench_torch_missing "")
if(NOT bench_torch)
  set(bench_torch_missing "python3 has no torch")
elseif(NOT EXISTS ${bench_torch}/lib/libc10_cuda.so OR NOT EXISTS ${bench_torch}/include/c10/cuda)
  set(bench_torch_missing "${bench_torch} was built without CUDA")
elseif(NOT bench_cuda_include)
  set(bench_torch_missing "its headers need cuda_runtime_api.h, which is not here")
else()
  file(STRINGS ${bench_torch}/version.py bench_torch_version REGEX "^__version__ = ")
  string(REGEX REPLACE ".*'(.*)'.*" "\\1" bench_torch_version "${bench_torch_version}")
endif()

bench_python_package(librmm bench_rmm)
bench_python_package(rapids_logger bench_rapids_logger)
set(bench_rmm_missing "")
if(NOT bench_rmm OR NOT EXISTS ${bench_rmm}/lib64/librmm.so)
  set(bench_rmm_missing "python3 has no librmm")
elseif(NOT bench_cuda_include OR NOT bench_cudart)
  set(bench_rmm_missing "it needs cuda_runtime_api.h and libcudart, which are not here")
else()
  file(STRINGS ${bench_rmm}/VERSION bench_rmm_version)
endif()
