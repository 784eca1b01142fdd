# SPDX-License-Identifier: Apache-2.0
# plugins: one module per library that can allocate from the pool; only that module imports its library, and only on
# demand.
