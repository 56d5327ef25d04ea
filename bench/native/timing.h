/* What the load programs share: failing, clocks, percentiles. */
#ifndef TIMING_H
#define TIMING_H
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WARM_UP_NS = 1000000000 };
static const int64_t JOIN_NS = 30000000000LL;
static const int64_t GRACE_NS = 10000000000LL;

__attribute__((noreturn)) static void fail(const char *what, const char *why) {
  fprintf(stderr, "%s: %s\n", what, why);
  exit(1);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

__attribute__((unused)) static void sleep_until_ns(int64_t due_ns) {
  struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) {
  }
}

static int by_value(const void *left, const void *right) {
  int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
  return (a > b) - (a < b);
}

__attribute__((unused)) static void print_rate(long messages, int64_t elapsed_ns) {
  printf("{\"messages\": %ld, \"seconds\": %.6f}\n", messages, elapsed_ns / 1e9);
  fflush(stdout);
}

__attribute__((unused)) static void print_percentiles(int64_t *latency_ns, long count) {
  if (!count) fail("latency", "nothing arrived after the first second");
  qsort(latency_ns, count, sizeof *latency_ns, by_value);
  printf("{\"messages\": %ld, \"p50_ms\": %.4f, \"p99_ms\": %.4f}\n", count,
         latency_ns[count / 2] / 1e6, latency_ns[count * 99 / 100] / 1e6);
  fflush(stdout);
}

#endif
