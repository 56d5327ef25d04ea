/* Load over raw sockets: bytes prepared in Python are sent, answers are counted.
 *
 *   wire flood PROTOCOL SECONDS COUNT WINDOW UNIT_MESSAGES CHECK_AT   as fast as WINDOW allows
 *   wire drain PROTOCOL SECONDS COUNT                                 read until COUNT messages
 *   wire pace  PROTOCOL SECONDS RATE STAMP_AT                         latency at a steady rate
 *
 * PROTOCOL says how to find whole answers: kafka, nats or rabbit (its stream protocol). Sockets
 * are connected and past their handshake when they are inherited. Stdin describes them, one after
 * the other: int32 fd, then two byte strings with an int32 length: the unit to send (a request, a
 * publish frame), and what to send when more messages may be delivered (drain and pace).
 * WINDOW counts units in flight per connection, COUNT messages; UNIT_MESSAGES are in one unit.
 * CHECK_AT is where a Kafka answer carries its error code (after the size), or -1.
 * pace sends on the first socket, receives on the second; the time a message was due is written
 * STAMP_AT bytes into the unit, and comes back as the first eight bytes of its payload.
 * The result is one JSON object on stdout; anything wrong is one line on stderr and status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "timing.h"

enum { CONNECTIONS_MAX = 4096, PATTERN_BYTES = 256 << 10, BUFFER_BYTES = 64 << 10 };
enum { NATS_TOP_UP_MESSAGES = 2000 };
enum { RABBIT_CONFIRM = 3, RABBIT_PUBLISH_ERROR = 4, RABBIT_DELIVER = 8, RABBIT_CREDIT = 9 };
enum { RABBIT_CHUNK_AT = 5, RABBIT_ENTRIES_AT = RABBIT_CHUNK_AT + 48 };

typedef struct {
  int fd;
  uint32_t unit_bytes, more_bytes;
  char *unit, *more;
  char *pattern;            /* the unit repeated, so that one send carries many */
  size_t pattern_bytes;
  int64_t written_bytes, allowed_bytes, answered;
  char *buffer;
  size_t buffer_bytes, filled_bytes;
  long since_top_up;
  uint32_t watched; /* the events that epoll was told */
} connection_t;

typedef size_t (*parser_t)(connection_t *, const char *, size_t);

static connection_t connections[CONNECTIONS_MAX];
static int connection_count;
static int check_at = -1;
static long arrived; /* answers or messages, over all connections */

static int64_t *latency_ns;
static long latency_count, latency_max;
static int64_t count_from_ns;

static uint16_t u16(const char *at) { uint16_t x; memcpy(&x, at, 2); return ntohs(x); }
static uint32_t u32(const char *at) { uint32_t x; memcpy(&x, at, 4); return ntohl(x); }

static void send_whole(int fd, const char *bytes, size_t size_bytes) {
  while (size_bytes) {
    ssize_t sent = send(fd, bytes, size_bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      struct pollfd writable = {fd, POLLOUT, 0};
      poll(&writable, 1, 1000);
    } else if (sent < 0) {
      fail("send", strerror(errno));
    } else {
      bytes += sent, size_bytes -= sent;
    }
  }
}

static void note_message(const char *payload, size_t size_bytes) {
  int64_t due_ns;
  if (!latency_ns || size_bytes < sizeof due_ns) return;
  memcpy(&due_ns, payload, sizeof due_ns);
  if (due_ns >= count_from_ns && latency_count < latency_max)
    latency_ns[latency_count++] = now_ns() - due_ns;
}

/* Parsers: how many bytes the whole answers at the start of `at` take. */

static size_t parse_kafka(connection_t *connection, const char *at, size_t size_bytes) {
  size_t used = 0;
  while (size_bytes - used >= 4 && size_bytes - used - 4 >= u32(at + used)) {
    uint32_t frame_bytes = u32(at + used);
    if (check_at >= 0 && (frame_bytes < (uint32_t)check_at + 2 || u16(at + used + 4 + check_at))) {
      char code[16];
      snprintf(code, sizeof code, "%d", (int16_t)u16(at + used + 4 + check_at));
      fail("the broker answered with error code", code);
    }
    used += 4 + frame_bytes;
    connection->answered++, arrived++;
  }
  return used;
}

static void top_up_nats(connection_t *connection) {
  if (++connection->since_top_up < NATS_TOP_UP_MESSAGES || !connection->more_bytes) return;
  connection->since_top_up = 0;
  send_whole(connection->fd, connection->more, connection->more_bytes);
}

static size_t parse_nats(connection_t *connection, const char *at, size_t size_bytes) {
  size_t used = 0;
  const char *line_end;
  while ((line_end = memmem(at + used, size_bytes - used, "\r\n", 2))) {
    const char *line = at + used;
    size_t line_bytes = line_end + 2 - line;
    if (!strncmp(line, "-ERR", 4)) fail("NATS", strndup(line, line_bytes - 2));
    if (strncmp(line, "MSG ", 4) && strncmp(line, "HMSG ", 5)) {
      used += line_bytes; /* INFO, PING, PONG: nothing to count */
      continue;
    }
    const char *last = line_end;
    while (last[-1] != ' ') last--;
    size_t payload_bytes = strtoul(last, NULL, 10);
    if (size_bytes - used < line_bytes + payload_bytes + 2) break;
    const char *payload = line_end + 2;
    used += line_bytes + payload_bytes + 2;
    if (*line == 'H' && payload[8] == ' ') continue; /* a status, such as the end of a pull */
    if (connection->more_bytes)
      note_message(payload, payload_bytes);
    else if (memmem(payload, payload_bytes, "\"error\"", 7)) /* an acknowledgement, or not */
      fail("NATS", strndup(payload, payload_bytes));
    connection->answered++, arrived++;
    top_up_nats(connection);
  }
  return used;
}

static void note_entries(const char *frame, uint32_t frame_bytes) {
  uint16_t entry_count = u16(frame + RABBIT_CHUNK_AT + 2);
  const char *entry = frame + RABBIT_ENTRIES_AT, *end = frame + frame_bytes;
  for (int i = 0; i < entry_count && entry + 4 <= end; i++) {
    note_message(entry + 4, u32(entry));
    entry += 4 + u32(entry);
  }
}

static size_t parse_rabbit(connection_t *connection, const char *at, size_t size_bytes) {
  size_t used = 0;
  while (size_bytes - used >= 4 && size_bytes - used - 4 >= u32(at + used)) {
    const char *frame = at + used + 4;
    uint32_t frame_bytes = u32(at + used);
    long messages = 0;
    used += 4 + frame_bytes;
    switch (u16(frame) & 0x7fff) {
      case RABBIT_CONFIRM: messages = u32(frame + 5); break;
      case RABBIT_PUBLISH_ERROR: fail("RabbitMQ", "refused a message");
      case RABBIT_DELIVER:
        messages = u32(frame + RABBIT_CHUNK_AT + 4);
        if (latency_ns) note_entries(frame, frame_bytes);
        send_whole(connection->fd, connection->more, connection->more_bytes);
        break;
      default: break; /* heartbeats and answers to credit */
    }
    connection->answered += messages, arrived += messages;
  }
  return used;
}

/* Reads once and parses; a buffer too small for one answer grows. */
static void receive(connection_t *connection, parser_t parse) {
  if (connection->filled_bytes == connection->buffer_bytes) {
    connection->buffer_bytes *= 2;
    connection->buffer = realloc(connection->buffer, connection->buffer_bytes);
  }
  ssize_t got = recv(connection->fd, connection->buffer + connection->filled_bytes,
                     connection->buffer_bytes - connection->filled_bytes, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) fail("receive", got ? strerror(errno) : "the server closed the connection");
  connection->filled_bytes += got;
  size_t used = parse(connection, connection->buffer, connection->filled_bytes);
  connection->filled_bytes -= used;
  memmove(connection->buffer, connection->buffer + used, connection->filled_bytes);
}

static void watch(connection_t *connection, int poller, int operation, uint32_t events) {
  struct epoll_event interest = {events, {.ptr = connection}};
  if (epoll_ctl(poller, operation, connection->fd, &interest)) fail("epoll", strerror(errno));
  connection->watched = events;
}

/* Writes as much as is allowed and fits; what does not fit waits for the socket to be writable. */
static void send_allowed(connection_t *connection, int poller) {
  uint32_t events = EPOLLIN;
  while (connection->written_bytes < connection->allowed_bytes) {
    size_t from = connection->written_bytes % connection->pattern_bytes;
    size_t size_bytes = connection->pattern_bytes - from;
    int64_t room_bytes = connection->allowed_bytes - connection->written_bytes;
    if ((int64_t)size_bytes > room_bytes) size_bytes = room_bytes;
    ssize_t sent =
        send(connection->fd, connection->pattern + from, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN) {
      events |= EPOLLOUT;
      break;
    }
    if (sent < 0) fail("send", strerror(errno));
    connection->written_bytes += sent;
  }
  if (events != connection->watched) watch(connection, poller, EPOLL_CTL_MOD, events);
}

static void repeat_unit(connection_t *connection) {
  size_t times = PATTERN_BYTES / connection->unit_bytes + 1;
  connection->pattern_bytes = times * connection->unit_bytes;
  connection->pattern = malloc(connection->pattern_bytes);
  for (size_t i = 0; i < times; i++)
    memcpy(connection->pattern + i * connection->unit_bytes, connection->unit, connection->unit_bytes);
}

/* How far a connection may write: its window ahead of the answers, and never past its share. */
static void allow(connection_t *connection, long window, long unit_messages, long units_max) {
  int64_t units = connection->answered / unit_messages + window;
  if (units > units_max) units = units_max;
  if (units * connection->unit_bytes > connection->allowed_bytes)
    connection->allowed_bytes = units * connection->unit_bytes;
}

static long units_written(const connection_t *connection) {
  return (connection->written_bytes + connection->unit_bytes - 1) / connection->unit_bytes;
}

static int flood(parser_t parse, double seconds, char **argv) {
  long count = atol(argv[0]), window = atol(argv[1]), unit_messages = atol(argv[2]);
  long units_max = count / unit_messages / connection_count, expected = 0;
  check_at = atoi(argv[3]);
  int poller = epoll_create1(0);
  for (int i = 0; i < connection_count; i++) {
    repeat_unit(&connections[i]);
    watch(&connections[i], poller, EPOLL_CTL_ADD, EPOLLIN);
  }
  int64_t start_ns = now_ns(), stop_ns = start_ns + (int64_t)(seconds * 1e9), last_ns = start_ns;
  int stopping = 0;
  for (int i = 0; i < connection_count; i++) {
    allow(&connections[i], window, unit_messages, units_max);
    send_allowed(&connections[i], poller);
  }
  while (now_ns() < stop_ns + GRACE_NS) {
    if (!stopping && (now_ns() >= stop_ns || arrived >= units_max * unit_messages * connection_count)) {
      stopping = 1; /* finish the unit that is half written, then wait for the answers */
      for (int i = 0; i < connection_count; i++) {
        connections[i].allowed_bytes = units_written(&connections[i]) * connections[i].unit_bytes;
        expected += units_written(&connections[i]) * unit_messages;
        send_allowed(&connections[i], poller);
      }
    }
    if (stopping && arrived >= expected) break;
    struct epoll_event ready[64];
    int ready_count = epoll_wait(poller, ready, 64, 100);
    for (int i = 0; i < ready_count; i++) {
      connection_t *connection = ready[i].data.ptr;
      long before = arrived;
      if (ready[i].events & ~EPOLLOUT) receive(connection, parse);
      if (arrived > before) last_ns = now_ns();
      if (!stopping) allow(connection, window, unit_messages, units_max);
      send_allowed(connection, poller);
    }
  }
  if (!stopping || arrived < expected) fail("flood", "not every request was answered in time");
  printf("{\"messages\": %ld, \"seconds\": %.6f}\n", arrived, (last_ns - start_ns) / 1e9);
  return 0;
}

static void wait_readable(int64_t deadline_ns) {
  struct pollfd readable[2];
  int count = connection_count < 2 ? connection_count : 2;
  for (int i = 0; i < count; i++) readable[i] = (struct pollfd){connections[i].fd, POLLIN, 0};
  int64_t left_ms = (deadline_ns - now_ns()) / 1000000;
  poll(readable, count, left_ms < 0 ? 0 : left_ms < 100 ? (int)left_ms : 100);
}

static int drain(parser_t parse, double seconds, char **argv) {
  long count = atol(argv[0]);
  int64_t deadline_ns = now_ns() + (int64_t)(seconds * 1e9), first_ns = 0, last_ns = 0;
  connection_t *connection = &connections[0];
  send_whole(connection->fd, connection->unit, connection->unit_bytes);
  while (arrived < count && now_ns() < deadline_ns) {
    long before = arrived;
    wait_readable(deadline_ns);
    receive(connection, parse);
    if (arrived > before) {
      last_ns = now_ns();
      if (!first_ns) first_ns = last_ns;
    }
  }
  if (!arrived) fail("drain", "no message arrived in time");
  printf("{\"messages\": %ld, \"seconds\": %.6f}\n", arrived, (last_ns - first_ns) / 1e9);
  return 0;
}

typedef struct {
  int64_t start_ns;
  long count;
  double rate;
  int stamp_at;
} pacer_t;

static void *send_paced(void *argument) {
  pacer_t *pacer = argument;
  prctl(PR_SET_TIMERSLACK, 1);
  for (long i = 0; i < pacer->count; i++) {
    int64_t due_ns = pacer->start_ns + (int64_t)(i * 1e9 / pacer->rate);
    struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR) {
    }
    memcpy(connections[0].unit + pacer->stamp_at, &due_ns, sizeof due_ns);
    send_whole(connections[0].fd, connections[0].unit, connections[0].unit_bytes);
  }
  return NULL;
}

static int pace(parser_t parse, double seconds, char **argv) {
  if (connection_count != 2) fail("pace", "needs a socket to send on and one to receive on");
  pacer_t pacer = {.rate = atof(argv[0]), .stamp_at = atoi(argv[1])};
  pacer.count = (long)(pacer.rate * seconds);
  pacer.start_ns = now_ns() + 500000000;
  count_from_ns = pacer.start_ns + WARM_UP_NS;
  latency_max = pacer.count - (long)(pacer.rate * WARM_UP_NS / 1e9);
  if (latency_max <= 0) fail("pace", "SECONDS must be more than the warm-up of one second");
  latency_ns = malloc(latency_max * sizeof *latency_ns);
  int64_t deadline_ns = pacer.start_ns + (int64_t)(seconds * 1e9) + GRACE_NS;
  pthread_t sender;
  send_whole(connections[1].fd, connections[1].unit, connections[1].unit_bytes);
  pthread_create(&sender, NULL, send_paced, &pacer);
  while (connections[1].answered < pacer.count && now_ns() < deadline_ns) {
    wait_readable(deadline_ns);
    receive(&connections[0], parse);
    receive(&connections[1], parse);
  }
  if (connections[1].answered < pacer.count) fail("pace", "messages were lost or late by 10 s");
  pthread_join(sender, NULL);
  print_percentiles(latency_ns, latency_count);
  return 0;
}

static char *read_bytes(uint32_t *size_bytes) {
  if (fread(size_bytes, sizeof *size_bytes, 1, stdin) != 1) fail("stdin", "ends too early");
  char *bytes = malloc(*size_bytes + 1);
  if (fread(bytes, 1, *size_bytes, stdin) != *size_bytes) fail("stdin", "ends too early");
  return bytes;
}

static void read_connections(void) {
  int32_t fd;
  while (fread(&fd, sizeof fd, 1, stdin) == 1) {
    if (connection_count == CONNECTIONS_MAX) fail("stdin", "too many connections");
    connection_t *connection = &connections[connection_count++];
    connection->fd = fd;
    connection->unit = read_bytes(&connection->unit_bytes);
    connection->more = read_bytes(&connection->more_bytes);
    connection->buffer_bytes = BUFFER_BYTES;
    connection->buffer = malloc(BUFFER_BYTES);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  if (!connection_count) fail("stdin", "describes no connection");
}

static parser_t parser_of(const char *protocol) {
  if (!strcmp(protocol, "kafka")) return parse_kafka;
  if (!strcmp(protocol, "nats")) return parse_nats;
  if (!strcmp(protocol, "rabbit")) return parse_rabbit;
  fail("unknown protocol", protocol);
  return NULL;
}

int main(int argc, char **argv) {
  if (argc < 5) fail("usage", "wire flood|drain|pace PROTOCOL SECONDS ...");
  parser_t parse = parser_of(argv[2]);
  double seconds = atof(argv[3]);
  read_connections();
  if (argc == 8 && !strcmp(argv[1], "flood")) return flood(parse, seconds, argv + 4);
  if (argc == 5 && !strcmp(argv[1], "drain")) return drain(parse, seconds, argv + 4);
  if (argc == 6 && !strcmp(argv[1], "pace")) return pace(parse, seconds, argv + 4);
  fail("usage", "wire flood|drain|pace PROTOCOL SECONDS ...");
}
