/* Work queues over raw sockets: messages are received and acknowledged one by one or in portions.
 *
 *   queue drain PROTOCOL SECONDS COUNT PORTION [AT ...]    until COUNT messages are acknowledged
 *   queue pace PROTOCOL SECONDS RATE STAMP_AT [AT ...]     from due to acknowledged at a steady rate
 *
 * PROTOCOL is nats (JetStream, pull consumer), amqp (0.9.1, RabbitMQ) or share (Kafka's share groups: a
 * member that has joined, of one partition). Sockets are connected and past
 * their handshake when they are inherited. Stdin describes them as in wire.c: int32 fd, then two byte
 * strings with an int32 length. drain: every socket is a consumer. pace: the first socket publishes its
 * unit, with the time it was due STAMP_AT bytes into it, and the second consumes.
 *   nats: a consumer's unit is the pull request, sent again when the messages it asked for have come
 *         (pace) or are acknowledged (drain); its second string is the subject on which the server
 *         answers an acknowledgement. Subscription 1 brings messages, 2 those answers.
 *   amqp: a consumer's unit is basic.consume. Its prefetch is PORTION, so that the server sends more
 *         only when it has the acknowledgement: that answers one in drain. In pace each is followed by
 *         channel.flow, and counts when that is answered.
 *   share: a consumer's unit is a ShareFetch, and its second string acknowledges what was acquired and
 *         fetches again: one ShareFetch in drain, in pace a ShareAcknowledge and a ShareFetch, so that an
 *         acknowledgement does not wait for the next record. Correlation ids tell the answers apart: 1
 *         and 2. AT are positions: of the session epoch in the unit; in the second string that of the
 *         first epoch, of the first offset (the last one is behind it), and in pace of the second epoch;
 *         in pace also of the checksum in the publisher's unit.
 * The result is one JSON object on stdout; anything wrong is one line on stderr and status 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "timing.h"

enum { CONNECTIONS_MAX = 64, BUFFER_BYTES = 256 << 10, TOKENS_MAX = 6, PACE_PULL = 100 };
enum { AMQP_METHOD = 1, AMQP_HEADER = 2, AMQP_BODY = 3, AMQP_HEAD_BYTES = 7 };
enum { CONNECTION_CLOSE = 10 << 16 | 50, CHANNEL_CLOSE = 20 << 16 | 40 };
enum { FLOW_OK = 20 << 16 | 21, DELIVER = 60 << 16 | 60 };

enum { FETCHED = 1, ACKNOWLEDGED = 2 };
enum { EPOCH_AT, NEXT_EPOCH_AT, FIRST_AT, LATER_EPOCH_AT, CRC_AT, SHARE_ARGUMENTS };

typedef struct {
  int fd;
  uint32_t unit_bytes, more_bytes;
  char *unit, *more;
  char *buffer, *out;
  size_t buffer_bytes, filled_bytes, out_bytes, out_room;
  long received;   /* messages of this portion, or since the last pull */
  long unanswered; /* acknowledgements that were sent */
  uint64_t tag;    /* amqp: of the last delivery */
  uint64_t body_left_bytes;
  uint32_t epoch; /* share: of the session's next request */
} connection_t;

typedef size_t (*parser_t)(connection_t *, const char *, size_t);

static connection_t connections[CONNECTIONS_MAX];
static int connection_count, pacing;
static long portion, acknowledged;
static int64_t last_ns;
static int share_at[SHARE_ARGUMENTS];
/* pace: due times of messages whose acknowledgement is not answered yet, in the order of sending. */
static int64_t *due_times_ns, *latency_ns, count_from_ns;
static long due_count, answered_count, latency_count;

static uint32_t u32(const char *at) { uint32_t x; memcpy(&x, at, 4); return ntohl(x); }
static uint64_t u64(const char *at) { uint64_t x; memcpy(&x, at, 8); return be64toh(x); }

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

static void put_out(connection_t *connection, const char *bytes, size_t size_bytes) {
  if (connection->out_bytes + size_bytes > connection->out_room) {
    connection->out_room = 2 * (connection->out_bytes + size_bytes);
    connection->out = realloc(connection->out, connection->out_room);
  }
  memcpy(connection->out + connection->out_bytes, bytes, size_bytes);
  connection->out_bytes += size_bytes;
}

static void send_out(connection_t *connection) {
  if (connection->out_bytes) send_whole(connection->fd, connection->out, connection->out_bytes);
  connection->out_bytes = 0;
}

static void note_due(const char *payload, size_t size_bytes) {
  int64_t due_ns = 0;
  if (size_bytes >= sizeof due_ns) memcpy(&due_ns, payload, sizeof due_ns);
  due_times_ns[due_count++] = due_ns;
}

static void note_answers(long count) {
  last_ns = now_ns();
  acknowledged += count;
  for (long i = 0; pacing && i < count; i++) {
    int64_t due_ns = due_times_ns[answered_count++];
    if (due_ns >= count_from_ns) latency_ns[latency_count++] = last_ns - due_ns;
  }
}

/* NATS: every message has a subject of its own to acknowledge it. */

static void pull(connection_t *connection) {
  connection->received = 0;
  put_out(connection, connection->unit, connection->unit_bytes);
}

static void note_nats_message(connection_t *connection, const char *reply, size_t reply_bytes,
                              const char *payload, size_t payload_bytes) {
  char line[512];
  int line_bytes = snprintf(line, sizeof line, "PUB %.*s %.*s 4\r\n+ACK\r\n", (int)reply_bytes, reply,
                            (int)connection->more_bytes, connection->more);
  put_out(connection, line, line_bytes);
  connection->received++, connection->unanswered++;
  if (pacing) {
    note_due(payload, payload_bytes);
    if (connection->received == PACE_PULL) pull(connection);
    send_out(connection);
  } else if (connection->received == portion) {
    send_out(connection);
  }
}

static void note_nats_answer(connection_t *connection) {
  connection->unanswered--;
  note_answers(1);
  if (pacing || connection->unanswered || connection->received < portion) return;
  pull(connection);
  send_out(connection);
}

static size_t parse_nats(connection_t *connection, const char *at, size_t size_bytes) {
  size_t used = 0;
  const char *line_end;
  while ((line_end = memmem(at + used, size_bytes - used, "\r\n", 2))) {
    const char *line = at + used, *tokens[TOKENS_MAX];
    size_t line_bytes = line_end + 2 - line, lengths[TOKENS_MAX];
    int count = 0;
    if (!strncmp(line, "-ERR", 4)) fail("NATS", strndup(line, line_bytes - 2));
    if (strncmp(line, "MSG ", 4) && strncmp(line, "HMSG ", 5)) {
      used += line_bytes; /* INFO, PING, PONG: nothing to count */
      continue;
    }
    for (const char *from = line; from < line_end && count < TOKENS_MAX; count++) {
      tokens[count] = from;
      while (from < line_end && *from != ' ') from++;
      lengths[count] = from++ - tokens[count];
    }
    size_t payload_bytes = strtoul(tokens[count - 1], NULL, 10);
    if (size_bytes - used < line_bytes + payload_bytes + 2) break;
    used += line_bytes + payload_bytes + 2;
    if (*line == 'H') fail("NATS", "a pull ended without the messages it asked for");
    if (pacing && connection == &connections[0]) { /* the publisher's confirmations */
      if (memmem(line_end, payload_bytes, "\"error\"", 7)) fail("NATS", "refused a message");
      continue;
    }
    if (*tokens[2] == '1')
      note_nats_message(connection, tokens[3], lengths[3], line_end + 2, payload_bytes);
    else if (*tokens[2] == '2')
      note_nats_answer(connection);
  }
  return used;
}

/* AMQP: a delivery is a method, a header and a body, each in frames of its own. */

static void put_amqp_ack(connection_t *connection, int multiple) {
  char frame[21] = {AMQP_METHOD, 0, 1, 0, 0, 0, 13, 0, 60, 0, 80};
  uint64_t tag = htobe64(connection->tag);
  memcpy(frame + 11, &tag, sizeof tag);
  frame[19] = multiple, frame[20] = (char)0xce;
  put_out(connection, frame, sizeof frame);
}

static void put_amqp_flow(connection_t *connection) {
  const char frame[13] = {AMQP_METHOD, 0, 1, 0, 0, 0, 5, 0, 20, 0, 20, 1, (char)0xce};
  put_out(connection, frame, sizeof frame);
}

static void note_amqp_message(connection_t *connection, const char *payload, size_t size_bytes) {
  if (pacing) {
    note_due(payload, size_bytes);
    put_amqp_ack(connection, 0);
    put_amqp_flow(connection);
    send_out(connection);
    return;
  }
  if (connection->unanswered) note_answers(connection->unanswered);
  connection->unanswered = 0;
  if (++connection->received < portion) return;
  connection->unanswered = connection->received;
  connection->received = 0;
  put_amqp_ack(connection, 1);
  send_out(connection);
}

static void note_amqp_method(connection_t *connection, const char *payload) {
  uint32_t method = u32(payload);
  if (method == DELIVER) connection->tag = u64(payload + 5 + (uint8_t)payload[4]);
  if (method == FLOW_OK) note_answers(1);
  if (method == CHANNEL_CLOSE || method == CONNECTION_CLOSE)
    fail("RabbitMQ", strndup(payload + 7, (uint8_t)payload[6]));
}

static size_t parse_amqp(connection_t *connection, const char *at, size_t size_bytes) {
  size_t used = 0;
  while (size_bytes - used >= AMQP_HEAD_BYTES + 1) {
    const char *frame = at + used, *payload = frame + AMQP_HEAD_BYTES;
    uint32_t payload_bytes = u32(frame + 3);
    if (size_bytes - used < AMQP_HEAD_BYTES + payload_bytes + 1) break;
    used += AMQP_HEAD_BYTES + payload_bytes + 1;
    if (*frame == AMQP_METHOD) note_amqp_method(connection, payload);
    if (*frame == AMQP_HEADER) connection->body_left_bytes = u64(payload + 4);
    if (*frame != AMQP_BODY) continue;
    if (payload_bytes != connection->body_left_bytes) fail("RabbitMQ", "a body in several frames");
    note_amqp_message(connection, payload, payload_bytes);
  }
  return used;
}

/* Kafka: flexible messages, as ShareFetch v1 and ShareAcknowledge v1 are answered. */

typedef struct {
  const char *at, *end;
} cursor_t;

typedef struct {
  uint64_t first, end; /* offsets; none if they are the same */
  const char *records;
  size_t records_bytes;
} acquired_t;

static const char *advance(cursor_t *cursor, size_t size_bytes) {
  const char *at = cursor->at;
  if ((size_t)(cursor->end - at) < size_bytes) fail("share", "an answer ends too early");
  cursor->at += size_bytes;
  return at;
}

static uint64_t read_varint(cursor_t *cursor) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    uint8_t byte = *advance(cursor, 1);
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return value;
  }
}

static int64_t read_signed_varint(cursor_t *cursor) {
  uint64_t value = read_varint(cursor);
  return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

/* The length of compact bytes, a string or an array; none is 0. */
static uint64_t read_length(cursor_t *cursor) {
  uint64_t length = read_varint(cursor);
  return length ? length - 1 : 0;
}

static void skip_tags(cursor_t *cursor) {
  for (uint64_t left = read_varint(cursor); left; left--) {
    read_varint(cursor);
    advance(cursor, read_varint(cursor));
  }
}

static void check_error(cursor_t *cursor) {
  const char *at = advance(cursor, 2);
  int16_t code = (int16_t)((uint8_t)at[0] << 8 | (uint8_t)at[1]);
  size_t text_bytes = read_length(cursor);
  const char *text = advance(cursor, text_bytes);
  if (code) fail("share", text_bytes ? strndup(text, text_bytes) : "an error without a text");
}

static void read_acquired(cursor_t *cursor, acquired_t *found) {
  found->records_bytes = read_length(cursor);
  found->records = advance(cursor, found->records_bytes);
  for (uint64_t left = read_length(cursor); left; left--) {
    const char *range = advance(cursor, 18);
    if (found->end > found->first && u64(range) != found->end) fail("share", "a gap was acquired");
    if (found->end == found->first) found->first = u64(range);
    found->end = u64(range + 8) + 1;
    skip_tags(cursor);
  }
}

static void check_partitions(cursor_t *cursor, acquired_t *found) {
  for (uint64_t topics = read_length(cursor); topics; topics--) {
    advance(cursor, 16);
    for (uint64_t left = read_length(cursor); left; left--) {
      advance(cursor, 4);
      check_error(cursor);
      if (found) check_error(cursor); /* of the acknowledgement on the way */
      advance(cursor, 8);             /* the leader and its epoch */
      skip_tags(cursor);
      if (found) read_acquired(cursor, found);
      skip_tags(cursor);
    }
    skip_tags(cursor);
  }
}

/* Due times are the first eight bytes of the values; batches are not compressed. */
static void note_due_of_batches(const acquired_t *found) {
  const char *batch = found->records, *end = batch + found->records_bytes;
  while (end - batch > 61) {
    cursor_t cursor = {batch + 61, batch + 12 + u32(batch + 8)};
    for (uint32_t left = u32(batch + 57); left; left--) {
      size_t record_bytes = read_signed_varint(&cursor);
      cursor_t record = {advance(&cursor, record_bytes), cursor.at};
      record.end = record.at + record_bytes;
      advance(&record, 1);
      read_varint(&record), read_varint(&record); /* time and offset */
      int64_t key_bytes = read_signed_varint(&record);
      if (key_bytes > 0) advance(&record, key_bytes);
      size_t value_bytes = read_signed_varint(&record);
      note_due(advance(&record, value_bytes), value_bytes);
    }
    batch = cursor.end;
  }
}

static void put_epoch(connection_t *connection, char *at) {
  uint32_t epoch = htonl(connection->epoch++);
  memcpy(at, &epoch, sizeof epoch);
}

static void fetch_again(connection_t *connection, const acquired_t *found) {
  connection->received = found->end - found->first;
  if (!connection->received) {
    put_epoch(connection, connection->unit + share_at[EPOCH_AT]);
    send_whole(connection->fd, connection->unit, connection->unit_bytes);
    return;
  }
  uint64_t offsets[] = {htobe64(found->first), htobe64(found->end - 1)};
  put_epoch(connection, connection->more + share_at[NEXT_EPOCH_AT]);
  memcpy(connection->more + share_at[FIRST_AT], offsets, sizeof offsets);
  if (pacing) put_epoch(connection, connection->more + share_at[LATER_EPOCH_AT]);
  send_whole(connection->fd, connection->more, connection->more_bytes);
}

static void note_share_answer(connection_t *connection, cursor_t cursor) {
  acquired_t found = {0};
  uint32_t kind = u32(advance(&cursor, 4));
  skip_tags(&cursor);
  advance(&cursor, 4); /* the throttle time */
  check_error(&cursor);
  if (kind == ACKNOWLEDGED) {
    check_partitions(&cursor, NULL);
    note_answers(connection->received);
    return;
  }
  advance(&cursor, 4); /* how long the locks last */
  check_partitions(&cursor, &found);
  if (pacing)
    note_due_of_batches(&found);
  else if (connection->received)
    note_answers(connection->received);
  fetch_again(connection, &found);
}

static size_t parse_share(connection_t *connection, const char *at, size_t size_bytes) {
  size_t used = 0;
  while (size_bytes - used >= 4 && size_bytes - used - 4 >= u32(at + used)) {
    cursor_t answer = {at + used + 4, at + used + 4 + u32(at + used)};
    used += 4 + u32(at + used);
    if (pacing && connection == &connections[0]) continue; /* what fails to be stored is missed */
    note_share_answer(connection, answer);
  }
  return used;
}

static uint32_t crc32c(const char *at, size_t size_bytes) {
  uint32_t crc = ~0u;
  for (; size_bytes; size_bytes--) {
    crc ^= (uint8_t)*at++;
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

/* A batch begins 17 bytes before its checksum, which is of everything behind it. */
static void put_crc(char *at) {
  uint32_t crc = htonl(crc32c(at + 4, u32(at - 9) - 9));
  memcpy(at, &crc, sizeof crc);
}

/* Reads once and parses; a buffer too small for one message grows. */
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

static void receive_ready(parser_t parse) {
  struct pollfd readable[CONNECTIONS_MAX];
  for (int i = 0; i < connection_count; i++)
    readable[i] = (struct pollfd){connections[i].fd, POLLIN, 0};
  poll(readable, connection_count, 100);
  for (int i = 0; i < connection_count; i++)
    if (readable[i].revents) receive(&connections[i], parse);
}

/* Timed from the first answered acknowledgement to the last, so that subscribing is not part of it. */
static void begin(connection_t *connection) {
  if (share_at[EPOCH_AT]) put_epoch(connection, connection->unit + share_at[EPOCH_AT]);
  send_whole(connection->fd, connection->unit, connection->unit_bytes);
}

static int drain(parser_t parse, double seconds, char **argv) {
  long count = atol(argv[0]), first = 0;
  int64_t deadline_ns = now_ns() + (int64_t)(seconds * 1e9), first_ns = 0;
  portion = atol(argv[1]);
  for (int i = 0; i < connection_count; i++) begin(&connections[i]);
  while (acknowledged < count && now_ns() < deadline_ns) {
    receive_ready(parse);
    if (acknowledged && !first_ns) first_ns = last_ns, first = acknowledged;
  }
  if (acknowledged == first) fail("drain", "no message was acknowledged in time");
  print_rate(acknowledged - first, last_ns - first_ns);
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
  connection_t *publisher = &connections[0];
  prctl(PR_SET_TIMERSLACK, 1);
  for (long i = 0; i < pacer->count; i++) {
    int64_t due_ns = pacer->start_ns + (int64_t)(i * 1e9 / pacer->rate);
    sleep_until_ns(due_ns);
    memcpy(publisher->unit + pacer->stamp_at, &due_ns, sizeof due_ns);
    if (share_at[CRC_AT]) put_crc(publisher->unit + share_at[CRC_AT]);
    send_whole(publisher->fd, publisher->unit, publisher->unit_bytes);
  }
  return NULL;
}

static int pace(parser_t parse, double seconds, char **argv) {
  if (connection_count != 2) fail("pace", "needs a socket to publish on and one to consume on");
  pacer_t pacer = {.rate = atof(argv[0]), .stamp_at = atoi(argv[1])};
  pacer.count = (long)(pacer.rate * seconds);
  pacer.start_ns = now_ns() + 500000000;
  pacing = 1;
  count_from_ns = pacer.start_ns + WARM_UP_NS;
  latency_ns = malloc(pacer.count * sizeof *latency_ns);
  due_times_ns = malloc((pacer.count + PACE_PULL) * sizeof *due_times_ns);
  int64_t deadline_ns = pacer.start_ns + (int64_t)(seconds * 1e9) + GRACE_NS;
  pthread_t sender;
  begin(&connections[1]);
  pthread_create(&sender, NULL, send_paced, &pacer);
  while (acknowledged < pacer.count && now_ns() < deadline_ns) receive_ready(parse);
  if (acknowledged < pacer.count) fail("pace", "messages were lost or late by 10 s");
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
  if (!strcmp(protocol, "nats")) return parse_nats;
  if (!strcmp(protocol, "amqp")) return parse_amqp;
  if (!strcmp(protocol, "share")) return parse_share;
  fail("unknown protocol", protocol);
}

int main(int argc, char **argv) {
  if (argc < 6 || argc > 6 + SHARE_ARGUMENTS) fail("usage", "queue drain|pace PROTOCOL SECONDS ...");
  parser_t parse = parser_of(argv[2]);
  double seconds = atof(argv[3]);
  for (int i = 6; i < argc; i++) share_at[i - 6] = atoi(argv[i]);
  read_connections();
  if (!strcmp(argv[1], "drain")) return drain(parse, seconds, argv + 4);
  if (!strcmp(argv[1], "pace")) return pace(parse, seconds, argv + 4);
  fail("usage", "queue drain|pace PROTOCOL SECONDS ...");
}
