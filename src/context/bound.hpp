// context: a stream that is known by its object.
#pragma once

#include "base/line_allocator.hpp"
#include "context/device_context.hpp"

namespace vpmm::context {

// On a line of its own, for it is read at every call. Keeps its timeline from being retired. The timeline ends all the
// same when its CUDA context does.
class alignas(kCacheLine) DeviceContext::Bound final : public BoundStream {
 public:
  Bound(DeviceContext& context, const StreamFront::Client& client, time::TimelineId timeline)
      : context_(context), client_(client), timeline_(timeline) {}
  ~Bound() override;
  DevicePtr try_allocate(Bytes bytes, Bytes alignment) override;
  bool try_deallocate(DevicePtr ptr) override;
  Result<DevicePtr> allocate_beyond(Bytes bytes, Bytes alignment) override;
  Result<void> deallocate_beyond(DevicePtr ptr) override;

 private:
  bool is_fast() const;

  DeviceContext& context_;
  const StreamFront::Client client_;
  const time::TimelineId timeline_;
};

}  // namespace vpmm::context
