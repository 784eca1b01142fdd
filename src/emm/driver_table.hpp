// emm: the driver's calls as the table that memory managers get.
#pragma once

#include "base/result.hpp"
#include "driver/driver.hpp"
#include "vpmm/emm.h"

namespace vpmm::emm {

// A driver behind a table of C functions. It must stay where it is, and outlive all managers that
// have it.
class DriverTable {
 public:
  // `how_to_open` gives the driver that all calls go to. It is asked at each call, so that a table
  // can be had before anything of CUDA is touched; it must be quick when the driver is open.
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
