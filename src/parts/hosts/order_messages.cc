#include "parts/hosts/order_messages.h"

#include "exec/requests/limit.h"
#include "parts/hosts/patience.h"

namespace heteroplace::exec {

OrderSender::OrderSender(Group* group) : group_(group), places_(kMaxOnTheWay) {
  for (Place& place : places_) {
    for (int rank = 0; rank < group->num_ranks(); ++rank) {
      if (rank == group->rank()) continue;
      place.messages.push_back(
          group->MakeSend(rank, ControlTag::kOrder, &place.order, sizeof(Order)));
    }
    place.is_sending.assign(place.messages.size(), false);
  }
}

OrderSender::~OrderSender() {
  for (const Place& place : places_) {
    for (const bool is_sending : place.is_sending) {
      if (is_sending) group_->FailWaiting("the job ended with orders that were not taken");
    }
  }
}

bool OrderSender::IsFree(Place* place) {
  bool is_free = true;
  for (size_t i = 0; i < place->messages.size(); ++i) {
    if (place->is_sending[i]) place->is_sending[i] = !place->messages[i]->Test();
    is_free = is_free && !place->is_sending[i];
  }
  return is_free;
}

void OrderSender::Send(const Order& order) {
  group_->CheckAlive();
  Place& place = places_[next_];
  next_ = (next_ + 1) % places_.size();
  LookUntil({}, kMessageSpinNs, [&] { return IsFree(&place); });
  place.order = order;
  for (size_t i = 0; i < place.messages.size(); ++i) {
    place.messages[i]->Start();
    place.is_sending[i] = true;
  }
}

void OrderSender::Flush(int64_t deadline_ns) {
  for (Place& place : places_) {
    LookUntil(Limit{deadline_ns, {}}, kMessageSpinNs, [&] { return IsFree(&place); });
  }
}

OrderReceiver::OrderReceiver(Group* group, int feeding_rank)
    : message_(group->MakeReceive(feeding_rank, ControlTag::kOrder, &order_, sizeof(Order))) {
  message_->Start();
}

bool OrderReceiver::Take(Order* order) {
  if (!message_->Test()) return false;
  *order = order_;
  message_->Start();
  return true;
}

}  // namespace heteroplace::exec
