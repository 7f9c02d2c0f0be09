// How far all queues of an executor are, in one block of memory that GPUs can read and write.
#pragma once

#include <cstddef>
#include <memory>

#include "exec/engine/device_memory.h"
#include "exec/engine/image.h"
#include "exec/engine/sync.h"

namespace heteroplace::exec {

/*!
 * \brief The counters of all queues. Where the program uses a GPU the block is pinned, if the
 * system allows it: streams then wait for counters of the host, and write those that the host waits
 * for.
 *
 * It must outlive all streams.
 */
class ProgressTable {
 public:
  /*! \param num_contexts of each queue; counters of one context lie beside each other. */
  ProgressTable(const Image& image, size_t num_contexts);
  ProgressTable(const ProgressTable&) = delete;
  ProgressTable& operator=(const ProgressTable&) = delete;

  Progress& of(size_t queue, size_t context) { return entries_[context * num_queues_ + queue]; }
  /*! \brief Whether devices can use the words of the counters. */
  bool is_pinned() const { return pinned_ != nullptr && pinned_->is_pinned(); }
  /*!
   * \brief Whether streams may wait for counters of the host.
   *
   * Streams of a device share a few queues of the hardware. A stream that waits holds up what lies
   * behind it there, of other streams too; that ends as long as all work was issued after what it
   * waits for, directly or not. One thread issues a GPU's work in such an order, but those of two
   * GPUs do not know how far the other is: there the threads wait themselves.
   */
  bool may_streams_wait() const { return is_pinned() && num_gpus_ == 1; }

 private:
  size_t num_queues_;
  DeviceBuffer buffer_;
  Progress* entries_;
  std::unique_ptr<PinnedMemory> pinned_;
  int num_gpus_;
};

}  // namespace heteroplace::exec
