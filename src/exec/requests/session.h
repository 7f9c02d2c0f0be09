// What one sequence of calls keeps from call to call: the values of inputs that outputs replace.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "exec/devices/device.h"
#include "exec/engine/image.h"

namespace heteroplace::exec {

/*!
 * \brief A block of memory in each space that has state of sessions. One request at a time uses it.
 *
 * Requests of other executors may use it, too, whose programs keep the same state. Where such a
 * program keeps it at other places, the session has blocks for these too, and the values move there
 * before the request begins.
 */
class Session {
 public:
  /*! \brief All zeros. \throws Error kExecution when memory is short. */
  explicit Session(const Image* image);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /*! \brief Takes it for a request of a program, and brings the values where that program has them.
   * \throws Error kExecution if another request has it, or the program keeps other state. */
  void Take(const Image* image);
  void GiveBack() { is_taken_.store(false); }

  /*! \brief First byte of the state in a space of the program that it was taken for last; null:
   * there is none. */
  char* Block(const Space& space) const;
  /*! \brief What the blocks of its first program take. Constant. [num_spaces] */
  const std::vector<int64_t>& held_bytes() const;
  /*! \brief Size of the state, at all places together. */
  int64_t num_bytes() const { return num_bytes_.load(); }

  /*! \brief Makes all of it zeros. No request may use it meanwhile. */
  void Clear();
  /*! \brief Takes the values of another session with the same state, which no request may use
   * meanwhile. */
  void CopyFrom(const Session& other);
  /*! \brief Copies a host buffer of the state's size into it, or back. Blocks.
   * \param state its position among those that the program keeps. */
  void Write(size_t state, const void* data);
  void Read(size_t state, void* data) const;

 private:
  class Layout;

  void Enter(const Image* image);
  size_t LayoutOf(const Image* image);

  std::vector<std::unique_ptr<Layout>> layouts_;
  /*! \brief Which of them each program uses that has had the session. */
  std::vector<std::pair<std::shared_ptr<const Image>, size_t>> known_;
  /*! \brief The one that has the values. */
  size_t current_ = 0;
  std::atomic<int64_t> num_bytes_{0};
  std::atomic<bool> is_taken_{false};
};

}  // namespace heteroplace::exec
