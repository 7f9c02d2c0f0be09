#pragma once

#include <functional>

namespace heteroplace::list {

/*!
 * \brief Asked now and then while a plan grows; what it throws ends that. Empty: nobody watches.
 *
 * Schedulers that try one device per task need none: they end before anybody would look.
 */
using Watch = std::function<void()>;

}  // namespace heteroplace::list
