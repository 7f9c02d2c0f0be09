#pragma once

namespace heteroplace::exec {

/*! \brief Lets programs have kernels of cuBLASLt and cuDNN, from the first call on. Any thread. */
void RegisterNvidiaKernels();

}  // namespace heteroplace::exec
