// What one sequence of calls keeps from call to call: the values of inputs that outputs replace.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "exec/devices/device.h"
#include "exec/engine/image.h"

namespace heteroplace::exec {

/*!
 * \brief A block of memory in each space that has state of sessions. One request at a time uses it.
 *
 * The executor must outlive it. Requests of other executors may use it, too, whose programs keep
 * the same state in the same memories.
 */
class Session {
 public:
  /*! \brief All zeros. \throws Error kExecution when memory is short. */
  explicit Session(const Image* image);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /*! \brief First byte of the state in a space of a program; null: there is none. */
  char* Block(const Space& space) const;
  /*! \brief Refuses a program that keeps other state. \throws Error kExecution. */
  void CheckFits(const Program& program) const;
  /*! \brief What it takes. [num_spaces] */
  const std::vector<int64_t>& held_bytes() const { return held_bytes_; }

  /*! \brief Makes all of it zeros. No request may use it meanwhile. */
  void Clear();
  /*! \brief Takes the values of another session of the same program, which no request may use
   * meanwhile. */
  void CopyFrom(const Session& other);
  /*! \brief Copies a host buffer of a tensor's size into the state, or back. Blocks. */
  void Write(const Tensor& tensor, const void* data);
  void Read(const Tensor& tensor, void* data) const;

  /*! \brief Takes it for a request. \throws Error kExecution if another one has it. */
  void Take();
  void GiveBack() { is_taken_.store(false); }

 private:
  void ClearSpace(size_t place);
  const Space& SpaceOf(const Tensor& tensor) const {
    return image_->program().spaces[static_cast<size_t>(tensor.space)];
  }

  const Image* image_;
  std::vector<std::unique_ptr<DeviceBuffer>> blocks_;  // [num_spaces]; null: it has no state
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;
  std::vector<int64_t> held_bytes_;
  std::atomic<bool> is_taken_{false};
};

}  // namespace heteroplace::exec
