/*
 * Run a compiled file (`export_library`, `tvmc compile --placement`) on all devices of its plan,
 * from C or any language that calls C. No Python; TVM's runtime library is found at run time.
 *
 *     heteroplace_model* model = NULL;
 *     if (heteroplace_load("model.so", NULL, &model) != HETEROPLACE_OK) {
 *       fprintf(stderr, "%s\n", heteroplace_last_error());
 *       exit(1);
 *     }
 *     heteroplace_tensor x = {.struct_size = sizeof x}, y = {.struct_size = sizeof y};
 *     heteroplace_describe_input(model, 0, &x);
 *     heteroplace_describe_output(model, 0, &y);
 *     x.data = ...;               // x.bytes bytes, row major
 *     y.data = malloc(y.bytes);
 *     heteroplace_run(model, &x, 1, &y, 1, HETEROPLACE_NO_LIMIT);
 *     heteroplace_unload(model);
 *
 * Every function returns a status; where it is not HETEROPLACE_OK, `heteroplace_last_error` says
 * what, where, what was expected and how to mend it, and nothing was done. No C++ exception leaves
 * a function. Unless said otherwise any thread may call any function at any time.
 *
 * A later version of this library runs programs that were compiled with an earlier header: structs
 * begin with their size and grow at their end, handles are opaque, numbers keep their meaning. A
 * field that an older library does not know is refused by it unless it is zero.
 */
#ifndef HETEROPLACE_H_
#define HETEROPLACE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HETEROPLACE_API __attribute__((visibility("default")))
#else
#define HETEROPLACE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/*! \brief Raised when functions or fields are added. */
#define HETEROPLACE_API_VERSION 3

/*! \brief For `timeout_s`: any negative number. */
#define HETEROPLACE_NO_LIMIT (-1.0)

/*! \brief What became of a call: one of the values below. */
typedef int32_t heteroplace_status;
enum {
  HETEROPLACE_OK = 0,
  HETEROPLACE_BAD_ARGUMENT = 1,  /*!< a name, type, shape, size, index or null that cannot be */
  HETEROPLACE_BAD_FILE = 2,      /*!< missing, truncated, damaged, foreign, of another version */
  HETEROPLACE_NO_TVM = 3,        /*!< TVM's library is not found, not loadable, or too old */
  HETEROPLACE_FAILED = 4,        /*!< a device is missing here, a kernel or a copy failed */
  HETEROPLACE_TIMED_OUT = 5,     /*!< the limit of the call has passed */
  HETEROPLACE_CANCELLED = 6,     /*!< by heteroplace_cancel */
  HETEROPLACE_OUT_OF_MEMORY = 7, /*!< of the host */
  HETEROPLACE_INTERNAL = 8       /*!< a fault of this library; the text says which */
};

/*!
 * \brief Whether cores that wait take parts of the kernels of others meanwhile; the numbers that
 * come out are the same. By itself: where they share a cache and each worker has a core.
 */
typedef int32_t heteroplace_helping;
enum {
  HETEROPLACE_HELPING_AUTO = 0,
  HETEROPLACE_HELPING_OFF = 1,
  HETEROPLACE_HELPING_ON = 2 /*!< among all cores, also where it may not pay */
};

/*! \brief A loaded file: program, kernels, weights, worker threads. */
typedef struct heteroplace_model heteroplace_model;

/*! \brief One call in flight, with memory of its own from its inputs to its outputs. */
typedef struct heteroplace_request heteroplace_request;

/*! \brief How to load; zeros stand for the defaults. */
typedef struct heteroplace_load_options {
  size_t struct_size; /*!< sizeof(heteroplace_load_options) */
  /*! \brief Path of libtvm_runtime.so or libtvm.so, for files that need one: those for GPUs, and
   * those whose kernels sort. NULL: beside this library or program, in ../lib
   * of it, in the Python environment that it was installed into, or where the loader looks. */
  const char* tvm_library;
  /*! \brief Most requests at work at a time, each with memory of its own; 0: 1. */
  int32_t max_in_flight;
  /*! \brief How many trusted keys there are. */
  int32_t num_trusted_keys;
  /*! \brief Files of public Ed25519 keys, PEM: only what one of them has signed is loaded. NULL: a
   * signature is not looked at. */
  const char* const* trusted_keys; /* [num_trusted_keys] */
  /*! \brief Since version 2: one of HETEROPLACE_HELPING_AUTO and so on. */
  heteroplace_helping helping;
  /*! \brief Since version 2, as all below. 1: this process is one of the ranks that a launcher of
   * MPI started, which all load one file, a rank for each of its hosts. 0: it is alone. */
  int32_t is_rank;
  /*! \brief Which host each rank runs, "b,a"; NULL: rank i runs the cluster's host i. */
  const char* hosts;
  /*! \brief Path of the MPI library; NULL: one that is loaded, else that of the launcher, else
   * where the loader looks. */
  const char* mpi_library;
  /*! \brief A rank that is silent for so many seconds, 0.001 to 1e9, has failed; 0: 30. */
  double silence_s;
  /*! \brief Called once on each rank when any rank fails, from any thread, with the text that the
   * calls then fail of; `is_first` is 1 on the rank that is to show it. NULL: nobody is called. */
  void (*tell)(void* context, const char* text, int32_t is_first);
  void* tell_context;
  /*! \brief Since version 3. 1: every call runs as planned. 0: if other programs use the cores, or
   * several calls are at work, one thread does a call alone as long as that is faster. Outputs are
   * the same. Only plans of several cores without a GPU adapt. */
  int32_t keeps_plan;
} heteroplace_load_options;

/*! \brief An input or output of a model, and the caller's memory for it. */
typedef struct heteroplace_tensor {
  size_t struct_size; /*!< sizeof(heteroplace_tensor); in an array the same for each */
  const char* name;   /*!< from a description: as long as the model is loaded */
  /*! \brief DLPack's: 0 int, 1 unsigned int, 2 float, 4 bfloat, 6 bool (of 8 bits). */
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;  /*!< 1 */
  int32_t ndim;         /*!< 0: a scalar */
  const int64_t* shape; /*!< [ndim]; from a description: as long as the model is loaded */
  uint64_t bytes;       /*!< of the data */
  void* data;           /*!< host memory, row major, without gaps; NULL in a description */
} heteroplace_tensor;

/*! \brief HETEROPLACE_API_VERSION of the library that is loaded. */
HETEROPLACE_API int32_t heteroplace_api_version(void);

/*! \brief "timed out": a name for a status; never NULL. */
HETEROPLACE_API const char* heteroplace_status_name(heteroplace_status status);

/*! \brief Text of the calling thread's last call that failed; "" if none has. Until its next one.
 */
HETEROPLACE_API const char* heteroplace_last_error(void);

/*!
 * \brief Checks a file against its digests, this processor and its GPUs, then loads it.
 * \param options NULL: the defaults.
 * \param model set to the handle, or to NULL; to be given back by `heteroplace_unload`.
 */
HETEROPLACE_API heteroplace_status heteroplace_load(const char* path,
                                                    const heteroplace_load_options* options,
                                                    heteroplace_model** model);

/*! \brief Gives a handle back; NULL: nothing. Requests keep what they need until they are closed.
 */
HETEROPLACE_API void heteroplace_unload(heteroplace_model* model);

/*! \brief Whether this process feeds the model and reads its outputs: 1 if it is alone. The others
 * have no inputs and outputs, and call `heteroplace_serve`. */
HETEROPLACE_API heteroplace_status heteroplace_is_feeding(const heteroplace_model* model,
                                                          int32_t* is_feeding);

/*! \brief Does the part of a rank that does not feed the model, until the one that does unloads it.
 * HETEROPLACE_FAILED: a rank has failed, and all have. */
HETEROPLACE_API heteroplace_status heteroplace_serve(heteroplace_model* model);
/*! \brief Ends the job of several ranks for a fault of the caller's, such as a missing input: calls
 * of all ranks fail with this text, behind this rank's name. `heteroplace_unload` alone would let
 * the others end well. Does nothing in a process alone. Since version 2. */
HETEROPLACE_API heteroplace_status heteroplace_fail(heteroplace_model* model, const char* text);
/*! \brief Whether any cores help each other: 1 or 0. Since version 2. */
HETEROPLACE_API heteroplace_status heteroplace_is_helping(const heteroplace_model* model,
                                                          int32_t* is_helping);

/*! \brief The number of inputs, and of outputs. */
HETEROPLACE_API heteroplace_status heteroplace_num_inputs(const heteroplace_model* model,
                                                          int32_t* count);
HETEROPLACE_API heteroplace_status heteroplace_num_outputs(const heteroplace_model* model,
                                                           int32_t* count);

/*! \brief Fills in all of `tensor` but its size, which the caller has set. */
HETEROPLACE_API heteroplace_status heteroplace_describe_input(const heteroplace_model* model,
                                                              int32_t index,
                                                              heteroplace_tensor* tensor);
HETEROPLACE_API heteroplace_status heteroplace_describe_output(const heteroplace_model* model,
                                                               int32_t index,
                                                               heteroplace_tensor* tensor);

/*!
 * \brief Runs the model once, from the caller's inputs to the caller's outputs.
 *
 * While `max_in_flight` calls are at work it waits for one to end.
 * \param inputs [num_inputs], each input once, in any order; read only.
 * \param outputs [num_outputs], those that are to be copied, in any order. After an error their
 * bytes are undefined.
 * \param timeout_s most seconds for all of it; negative: no limit.
 */
HETEROPLACE_API heteroplace_status heteroplace_run(heteroplace_model* model,
                                                   const heteroplace_tensor* inputs,
                                                   int32_t num_inputs,
                                                   const heteroplace_tensor* outputs,
                                                   int32_t num_outputs, double timeout_s);

/*!
 * \brief Takes a request for the steps below: several of one thread are then at work at a time.
 *
 * One thread at a time may use it, but `heteroplace_cancel`.
 * \param request set to the handle, or to NULL; to be given back by `heteroplace_close`.
 * \param timeout_s how long to wait for one, as `max_in_flight` exist; negative: no limit.
 */
HETEROPLACE_API heteroplace_status heteroplace_begin(heteroplace_model* model, double timeout_s,
                                                     heteroplace_request** request);

/*! \brief Copies an input from the caller's memory. It stays for later runs of the request; of
 * state, until one fails. */
HETEROPLACE_API heteroplace_status heteroplace_set_input(heteroplace_request* request,
                                                         const heteroplace_tensor* tensor);

/*! \brief Hands the request to the devices, after those submitted before; it does not wait. */
HETEROPLACE_API heteroplace_status heteroplace_submit(heteroplace_request* request);

/*! \brief Waits for the end; HETEROPLACE_TIMED_OUT: it goes on. What it failed of is told by
 * `heteroplace_finish`. */
HETEROPLACE_API heteroplace_status heteroplace_wait(heteroplace_request* request, double timeout_s);

/*! \brief Waits for the end and says what became of it; at the limit the request is cancelled. It
 * may be submitted again after. */
HETEROPLACE_API heteroplace_status heteroplace_finish(heteroplace_request* request,
                                                      double timeout_s);

/*! \brief Ends a request that is in flight: `heteroplace_finish` then tells HETEROPLACE_CANCELLED.
 * Of any thread, until the request is closed. Of several ranks it ends the job: other requests, and
 * `heteroplace_serve` of other ranks, then tell HETEROPLACE_FAILED with its text. */
HETEROPLACE_API heteroplace_status heteroplace_cancel(heteroplace_request* request);

/*! \brief Copies an output into the caller's memory, after `heteroplace_finish`. */
HETEROPLACE_API heteroplace_status heteroplace_get_output(heteroplace_request* request,
                                                          const heteroplace_tensor* tensor);

/*! \brief Gives a request back; NULL: nothing. What is in flight is cancelled, and not waited for.
 * HETEROPLACE_FAILED: another thread is in a call of it, and it stays. */
HETEROPLACE_API heteroplace_status heteroplace_close(heteroplace_request* request);

/*!
 * \brief Records when each instruction of each request runs, from now on; cheap enough to leave on.
 * \param max_requests that are kept, the last ones; 0: as many as 8 MiB hold.
 */
HETEROPLACE_API heteroplace_status heteroplace_start_trace(heteroplace_model* model,
                                                           int64_t max_requests);

/*!
 * \brief Ends the recording, and writes it as a trace for https://ui.perfetto.dev.
 * \param path of the file, which appears as a whole. Where it cannot be written, the recording has
 * ended, and another call writes it, unless a new one was begun.
 * \param timeout_s how long to wait for requests in it that are at work; others are not written. Of
 * several ranks the others are waited for however long their part of those takes.
 */
HETEROPLACE_API heteroplace_status heteroplace_stop_trace(heteroplace_model* model,
                                                          const char* path, double timeout_s);

#ifdef __cplusplus
}
#endif

#endif /* HETEROPLACE_H_ */
