// How the rank that feeds a job tells the others what to do.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/requests/order.h"
#include "parts/hosts/group.h"

namespace heteroplace::exec {

/*! \brief The feeding rank's side. One thread at a time. */
class OrderSender {
 public:
  explicit OrderSender(Group* group);
  ~OrderSender();
  OrderSender(const OrderSender&) = delete;
  OrderSender& operator=(const OrderSender&) = delete;

  /*! \brief Begins to send to all others; waits only where they are far behind. \throws Error
   * kExecution if the job has failed. */
  void Send(const Order& order);
  /*! \brief Waits until all are sent, or a time of NowNs. \throws as Send. */
  void Flush(int64_t deadline_ns);

 private:
  /*! \brief Orders that may be on their way to one rank. */
  static constexpr size_t kMaxOnTheWay = 64;

  struct Place {
    Order order;
    std::vector<std::unique_ptr<Message>> messages;  // [num_ranks - 1]
    std::vector<bool> is_sending;
  };

  bool IsFree(Place* place);

  Group* group_;
  std::vector<Place> places_;
  size_t next_ = 0;
};

/*! \brief The other side. One thread at a time. */
class OrderReceiver {
 public:
  OrderReceiver(Group* group, int feeding_rank);

  /*! \brief The next order, if it is there. \throws Error kExecution if the job has failed. */
  bool Take(Order* order);

 private:
  Order order_;
  std::unique_ptr<Message> message_;
};

}  // namespace heteroplace::exec
