// SPDX-License-Identifier: Apache-2.0
// emm: the driver's calls as the table that memory managers get.
#pragma once

#include "base/result.hpp"
#include "driver/driver.hpp"
#include "vpmm/emm.h"

namespace vpmm::emm {

// A driver behind a table of C functions. It must stay in place, and outlive all its managers.
class DriverTable {
 public:
  // `how_to_open` returns the driver of all calls. Called at each call, so that a table exists
  // before CUDA is touched; must be quick once the driver is open.
  using Open = Result<driver::Driver*> (*)(void* argument);
  DriverTable(Open how_to_open, void* argument);
  explicit DriverTable(driver::Driver& driver)
      : DriverTable(
            [](void* at) -> Result<driver::Driver*> { return static_cast<driver::Driver*>(at); },
            &driver) {}
  DriverTable(const DriverTable&) = delete;
  DriverTable& operator=(const DriverTable&) = delete;

  const vpmm_emm_driver* table() const { return &table_; }
  Result<driver::Driver*> open() const { return open_(argument_); }

 private:
  vpmm_emm_driver table_;
  Open open_;
  void* argument_;
};

}  // namespace vpmm::emm
