/* A program of C11 that knows the public header alone; what it prints is read by
 * test_c_interface.py. Usage: c_program TASK MODEL TVM_LIBRARY FILE, with "-" for none; FILE holds
 * the inputs of all callers, and becomes their outputs. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "heteroplace.h"

enum { kCallers = 6, kRuns = 20, kRequests = 3 };

static heteroplace_model* model;
static heteroplace_tensor input, output;
static char* questions; /* [kCallers][input.bytes] */
static char* answers;   /* [kCallers][output.bytes] */

static void expect(heteroplace_status status) {
  if (status == HETEROPLACE_OK) return;
  fprintf(stderr, "%s: %s\n", heteroplace_status_name(status), heteroplace_last_error());
  exit(1);
}

static void tell(const char* what, heteroplace_status status) {
  printf("%s: %s: %s\n", what, heteroplace_status_name(status),
         status == HETEROPLACE_OK ? "" : heteroplace_last_error());
  fflush(stdout); /* a launcher may end this process */
}

static void load(const char* path, const char* tvm_library, int max_in_flight) {
  heteroplace_load_options options = {.struct_size = sizeof options};
  options.max_in_flight = max_in_flight;
  if (strcmp(tvm_library, "-") != 0) options.tvm_library = tvm_library;
  expect(heteroplace_load(path, &options, &model));
  input.struct_size = output.struct_size = sizeof input;
  expect(heteroplace_describe_input(model, 0, &input));
  expect(heteroplace_describe_output(model, 0, &output));
}

/* Each caller's question over and over; every answer must be the first one. */
static void* call(void* argument) {
  const size_t caller = (size_t)argument;
  heteroplace_tensor x = input, y = output;
  char* again = malloc(output.bytes);
  x.data = questions + caller * input.bytes;
  y.data = answers + caller * output.bytes;
  expect(heteroplace_run(model, &x, 1, &y, 1, HETEROPLACE_NO_LIMIT));
  y.data = again;
  for (int run = 0; run < kRuns; ++run) {
    expect(heteroplace_run(model, &x, 1, &y, 1, 60));
    if (memcmp(again, answers + caller * output.bytes, output.bytes) != 0) exit(2);
  }
  free(again);
  return NULL;
}

static void call_from_threads(void) {
  pthread_t threads[kCallers];
  for (size_t i = 0; i < kCallers; ++i) pthread_create(&threads[i], NULL, call, (void*)i);
  for (size_t i = 0; i < kCallers; ++i) pthread_join(threads[i], NULL);
}

/* The same with a ring of requests in one thread. */
static void call_in_flight(const char* trace) {
  heteroplace_request* ring[kRequests];
  heteroplace_tensor x = input, y = output;
  expect(heteroplace_start_trace(model, 0));
  for (size_t i = 0; i < kRequests; ++i) expect(heteroplace_begin(model, 1, &ring[i]));
  for (size_t i = 0; i < kCallers + kRequests; ++i) {
    heteroplace_request* request = ring[i % kRequests];
    if (i >= kRequests) {
      y.data = answers + (i - kRequests) * output.bytes;
      expect(heteroplace_wait(request, HETEROPLACE_NO_LIMIT));
      expect(heteroplace_finish(request, HETEROPLACE_NO_LIMIT));
      expect(heteroplace_get_output(request, &y));
    }
    if (i >= kCallers) continue;
    x.data = questions + i * input.bytes;
    expect(heteroplace_set_input(request, &x));
    expect(heteroplace_submit(request));
  }
  expect(heteroplace_stop_trace(model, trace, HETEROPLACE_NO_LIMIT));
  heteroplace_unload(model); /* requests keep what they need */
  for (size_t i = 0; i < kRequests; ++i) expect(heteroplace_close(ring[i]));
}

static void answer(const char* task, const char* path) {
  questions = malloc(kCallers * input.bytes);
  answers = malloc(kCallers * output.bytes);
  FILE* file = fopen(path, "rb");
  if (file == NULL || fread(questions, input.bytes, kCallers, file) != kCallers) exit(3);
  fclose(file);
  if (strcmp(task, "threads") == 0) {
    call_from_threads();
    heteroplace_unload(model);
  } else {
    char trace[4096];
    snprintf(trace, sizeof trace, "%s.json", path);
    call_in_flight(trace);
  }
  file = fopen(path, "wb");
  if (file == NULL || fwrite(answers, output.bytes, kCallers, file) != kCallers) exit(3);
  if (fclose(file) != 0) exit(3);
  free(questions);
  free(answers);
}

/* How the model is loaded says whether cores help each other. */
static void tell_helping(const char* path) {
  const heteroplace_helping choices[] = {HETEROPLACE_HELPING_ON, HETEROPLACE_HELPING_OFF};
  for (int i = 0; i < 2; ++i) {
    heteroplace_model* other = NULL;
    int32_t is_helping = -1;
    heteroplace_load_options options = {.struct_size = sizeof options, .helping = choices[i]};
    expect(heteroplace_load(path, &options, &other));
    expect(heteroplace_is_helping(other, &is_helping));
    printf("%d\n", is_helping);
    heteroplace_unload(other);
  }
}

static void misuse_handles(void) {
  heteroplace_model* none = NULL;
  heteroplace_request* request = NULL;
  int32_t count = 0;
  heteroplace_load_options options = {.struct_size = sizeof options, .max_in_flight = -1};
  tell("no path", heteroplace_load(NULL, NULL, &none));
  tell("nowhere to put it", heteroplace_load("model.so", NULL, NULL));
  tell("negative in flight", heteroplace_load("model.so", &options, &none));
  options.max_in_flight = 0;
  options.helping = 3;
  tell("unknown helping", heteroplace_load("model.so", &options, &none));
  options.helping = HETEROPLACE_HELPING_ON;
  options.is_rank = 2;
  tell("no rank", heteroplace_load("model.so", &options, &none));
  options.is_rank = 0;
  options.keeps_plan = 2;
  tell("no plan", heteroplace_load("model.so", &options, &none));
  options.keeps_plan = 0;
  options.num_trusted_keys = 2;
  tell("no keys", heteroplace_load("model.so", &options, &none));
  options.num_trusted_keys = -1;
  tell("fewer than no keys", heteroplace_load("model.so", &options, &none));
  options.num_trusted_keys = 0;
  options.silence_s = 1e-10;
  tell("short silence", heteroplace_load("model.so", &options, &none));
  /* What an earlier header does not have is not looked at. */
  options.helping = 3;
  options.struct_size = offsetof(heteroplace_load_options, helping);
  tell("earlier header", heteroplace_load("/nowhere/model.so", &options, &none));
  options.struct_size = 4;
  tell("small options", heteroplace_load("model.so", &options, &none));
  struct {
    heteroplace_load_options known;
    int64_t later;
  } more = {{.struct_size = sizeof more}, 0};
  tell("later header", heteroplace_load("/nowhere/model.so", &more.known, &none));
  more.later = 1;
  tell("later field", heteroplace_load("/nowhere/model.so", &more.known, &none));
  more.known.struct_size = (size_t)-1;
  tell("garbage for a size", heteroplace_load("/nowhere/model.so", &more.known, &none));
  tell("missing file", heteroplace_load("/nowhere/model.so", NULL, &none));
  tell("no model", heteroplace_num_inputs(NULL, &count));
  tell("no count", heteroplace_num_outputs(model, NULL));
  tell("no answer", heteroplace_is_helping(model, NULL));
  tell("no request", heteroplace_submit(NULL));
  tell("begin of nothing", heteroplace_begin(NULL, 0, &request));
  tell("nothing is closed", heteroplace_close(NULL));
  tell("trace of nothing", heteroplace_start_trace(NULL, 0));
  tell("negative requests", heteroplace_start_trace(model, -1));
  expect(heteroplace_start_trace(model, 0));
  tell("no folder", heteroplace_stop_trace(model, "/nowhere/trace.json", 1));
  tell("another folder", heteroplace_stop_trace(model, "/dev/null", 1));
  tell("no trace", heteroplace_stop_trace(model, "/dev/null", 1));
  tell("no file", heteroplace_stop_trace(model, NULL, 1));
  heteroplace_unload(NULL);
  printf("%s, %s\n", heteroplace_status_name(-1), heteroplace_status_name(99));
}

static void misuse_tensors(void) {
  const int64_t other[] = {1, 2};
  heteroplace_tensor x = input, y = output;
  heteroplace_tensor small = {.struct_size = 8};
  tell("small tensor", heteroplace_describe_input(model, 0, &small));
  tell("index below", heteroplace_describe_input(model, -1, &x));
  tell("index above", heteroplace_describe_output(model, 1, &y));
  tell("no data", heteroplace_run(model, &x, 1, &y, 1, 1));
  x.data = malloc(x.bytes);
  y.data = malloc(y.bytes);
  memset(x.data, 0, x.bytes);
  tell("no inputs", heteroplace_run(model, NULL, 0, &y, 1, 1));
  tell("null inputs", heteroplace_run(model, NULL, 1, &y, 1, 1));
  tell("no number", heteroplace_run(model, &x, 1, &y, 1, 0.0 / 0.0));
  tell("negative count", heteroplace_run(model, &x, -1, &y, 1, 1));
  x.ndim = 2;
  x.shape = other;
  y.type_bits = 64;
  tell("wrong input", heteroplace_run(model, &x, 1, &y, 1, 1));
  x = input;
  x.name = "other";
  x.data = y.data;
  tell("wrong name", heteroplace_run(model, &x, 1, NULL, 0, 1));
  x = input;
  x.data = malloc(x.bytes);
  tell("wrong output", heteroplace_run(model, &x, 1, &y, 1, 1));
  x.bytes -= 1;
  tell("few bytes", heteroplace_run(model, &x, 1, NULL, 0, 1));
}

static void misuse_requests(void) {
  heteroplace_request* requests[kRequests + 1];
  heteroplace_tensor x = input, y = output;
  x.data = calloc(1, x.bytes);
  y.data = malloc(y.bytes);
  for (int i = 0; i < kRequests; ++i) expect(heteroplace_begin(model, 0, &requests[i]));
  tell("too many", heteroplace_begin(model, 0.01, &requests[kRequests]));
  tell("without input", heteroplace_submit(requests[0]));
  tell("not submitted", heteroplace_finish(requests[0], 1));
  tell("no output yet", heteroplace_get_output(requests[0], &y));
  expect(heteroplace_set_input(requests[0], &x));
  expect(heteroplace_submit(requests[0]));
  tell("in flight", heteroplace_submit(requests[0]));
  expect(heteroplace_cancel(requests[0]));
  expect(heteroplace_close(requests[0]));
  expect(heteroplace_close(requests[1]));
  expect(heteroplace_close(requests[2]));
}

/* A model that takes long. */
static void end_early(void) {
  heteroplace_request* request = NULL;
  heteroplace_tensor x = input, y = output;
  x.data = calloc(1, x.bytes);
  y.data = malloc(y.bytes);
  tell("late run", heteroplace_run(model, &x, 1, &y, 1, 0.005));
  /* Steps of the first run may be at work still: until they end the model is of no use. */
  const struct timespec moment = {0, 10000000};
  while (heteroplace_begin(model, 10, &request) == HETEROPLACE_FAILED) nanosleep(&moment, NULL);
  expect(heteroplace_set_input(request, &x));
  expect(heteroplace_submit(request));
  tell("wait", heteroplace_wait(request, 0.005));
  expect(heteroplace_cancel(request));
  tell("cancelled", heteroplace_finish(request, HETEROPLACE_NO_LIMIT));
  tell("no output", heteroplace_get_output(request, &y));
  expect(heteroplace_submit(request));
  tell("late finish", heteroplace_finish(request, 0));
  expect(heteroplace_close(request));
}

/* A request of zeros that was cancelled in flight. */
static heteroplace_request* cancelled_request(heteroplace_tensor* x) {
  heteroplace_request* request = NULL;
  x->data = calloc(1, x->bytes);
  expect(heteroplace_begin(model, 10, &request));
  expect(heteroplace_set_input(request, x));
  expect(heteroplace_submit(request));
  expect(heteroplace_cancel(request));
  tell("cancelled", heteroplace_finish(request, HETEROPLACE_NO_LIMIT));
  return request;
}

/* A model whose input is state: a request that was cancelled may have replaced some of it. */
static void lose_state(void) {
  heteroplace_tensor x = input;
  heteroplace_request* request = cancelled_request(&x);
  tell("lost", heteroplace_submit(request));
  expect(heteroplace_set_input(request, &x));
  for (int run = 0; run < 2; ++run) {
    expect(heteroplace_submit(request));
    expect(heteroplace_finish(request, HETEROPLACE_NO_LIMIT));
  }
  expect(heteroplace_close(request));
}

/* One of several ranks: a request that is cancelled ends the job. */
static void cancel_on_ranks(const char* path) {
  heteroplace_load_options options = {.struct_size = sizeof options, .is_rank = 1};
  int32_t is_feeding = 0;
  const struct timespec long_enough = {20, 0}; /* the launcher ends all with the first one */
  /* A rank that is late fails here already: the other one has cancelled its request. */
  if (heteroplace_load(path, &options, &model) != HETEROPLACE_OK) {
    fprintf(stderr, "late: %s\n", heteroplace_last_error());
    nanosleep(&long_enough, NULL);
    return;
  }
  expect(heteroplace_is_feeding(model, &is_feeding));
  if (!is_feeding) {
    if (heteroplace_serve(model) != HETEROPLACE_OK) nanosleep(&long_enough, NULL);
    return;
  }
  heteroplace_tensor x = {.struct_size = sizeof x};
  expect(heteroplace_describe_input(model, 0, &x));
  heteroplace_request* request = cancelled_request(&x);
  tell("once more", heteroplace_submit(request));
  expect(heteroplace_close(request));
  heteroplace_unload(model);
}

int main(int argc, char** argv) {
  if (argc != 5) return 4;
  const char* task = argv[1];
  if (heteroplace_api_version() != HETEROPLACE_API_VERSION) return 5;
  if (strcmp(heteroplace_last_error(), "") != 0) return 6;
  if (strcmp(task, "ranks") == 0) {
    cancel_on_ranks(argv[2]);
    return 0;
  }
  const int is_state = strcmp(task, "state") == 0;
  load(argv[2], argv[3], is_state ? 1 : kRequests);
  if (strcmp(task, "misuse") == 0) {
    misuse_handles();
    misuse_tensors();
    misuse_requests();
  } else if (strcmp(task, "helping") == 0) {
    tell_helping(argv[2]);
  } else if (strcmp(task, "early") == 0) {
    end_early();
  } else if (is_state) {
    lose_state();
  } else {
    answer(task, argv[4]);
  }
  return 0;
}
