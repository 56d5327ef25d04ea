/* Load through librdkafka, in C so that the client is not what is measured.
 *
 *   rdkafka produce HOST:PORT TOPIC SIZE_BYTES COUNT SECONDS [name=value ...]
 *   rdkafka spread HOST:PORT[,...] TOPIC SIZE_BYTES COUNT SECONDS [name=value ...]
 *   rdkafka consume HOST:PORT TOPIC COUNT SECONDS [name=value ...]
 *   rdkafka latency HOST:PORT TOPIC SIZE_BYTES RATE SECONDS [name=value ...]
 *   rdkafka commit HOST:PORT TOPIC COUNT SECONDS [name=value ...]
 *   rdkafka transact HOST:PORT TOPIC SIZE_BYTES RECORDS COUNT SECONDS [name=value ...]
 *
 * name=value are librdkafka's own settings. Every loop ends after SECONDS (plus a grace to flush).
 * The result is one JSON object on stdout; anything wrong is one line on stderr and status 1.
 * The client library comes inside the confluent-kafka wheel, which ships no headers: the few
 * declarations used here are written out below. They are part of its stable ABI.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "timing.h"

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_topic_partition_list_s rd_kafka_topic_partition_list_t;
typedef struct {
  int err;
  rd_kafka_topic_t *rkt;
  int32_t partition;
  void *payload;
  size_t len;
  void *key;
  size_t key_len;
  int64_t offset;
  void *opaque;
} rd_kafka_message_t;
enum { RD_KAFKA_PRODUCER, RD_KAFKA_CONSUMER };
enum { PRODUCE_COPY = 0x2, PRODUCE_BLOCK = 0x4 };
enum { OFFSET_BEGINNING = -2, ERR_PARTITION_EOF = -191 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *,
                                 void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, rd_kafka_topic_conf_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_flush(rd_kafka_t *, int);
int rd_kafka_outq_len(rd_kafka_t *);
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *);
int rd_kafka_consume_start_queue(rd_kafka_topic_t *, int32_t, int64_t, rd_kafka_queue_t *);
ssize_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
void rd_kafka_message_destroy(rd_kafka_message_t *);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int);
void *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *, const char *, int32_t);
int rd_kafka_subscribe(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
int rd_kafka_poll_set_consumer(rd_kafka_t *);
rd_kafka_message_t *rd_kafka_consumer_poll(rd_kafka_t *, int);
int rd_kafka_commit_message(rd_kafka_t *, const rd_kafka_message_t *, int);
int rd_kafka_consumer_close(rd_kafka_t *);
typedef struct rd_kafka_error_s rd_kafka_error_t;
rd_kafka_error_t *rd_kafka_init_transactions(rd_kafka_t *, int);
rd_kafka_error_t *rd_kafka_begin_transaction(rd_kafka_t *);
rd_kafka_error_t *rd_kafka_commit_transaction(rd_kafka_t *, int);
const char *rd_kafka_error_string(const rd_kafka_error_t *);
const char *rd_kafka_err2str(int);
int rd_kafka_last_error(void);

enum { FLUSH_MS = 30000, BATCH_MESSAGES = 4096, ANY_PARTITION = -1 };

static atomic_long failed_messages;
static atomic_int last_failure;
static atomic_int polling = 1;

static void note_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
  (void)client, (void)opaque;
  if (message->err) {
    last_failure = message->err;
    failed_messages++;
  }
}

static rd_kafka_t *open_client(int role, const char *broker, char **settings, int setting_count) {
  char why[512];
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  if (rd_kafka_conf_set(conf, "bootstrap.servers", broker, why, sizeof why)) fail("settings", why);
  for (int i = 0; i < setting_count; i++) {
    char *name = strdup(settings[i]), *value = strchr(name, '=');
    if (!value) fail("settings", settings[i]);
    *value++ = 0;
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why)) fail("settings", why);
  }
  if (role == RD_KAFKA_PRODUCER) {
    /* A report per message would measure the client's callbacks; failures are still reported,
     * and a flushed, empty queue without failures means that everything was acknowledged. */
    rd_kafka_conf_set(conf, "delivery.report.only.error", "true", why, sizeof why);
    rd_kafka_conf_set_dr_msg_cb(conf, note_delivery);
  }
  rd_kafka_t *client = rd_kafka_new(role, conf, why, sizeof why);
  if (!client) fail("client", why);
  return client;
}

static void *poll_until_told(void *client) {
  while (polling) rd_kafka_poll(client, 50);
  return NULL;
}

/* Returns only when the queue is empty and nothing failed. */
static void flush_or_fail(rd_kafka_t *client) {
  rd_kafka_flush(client, FLUSH_MS);
  if (rd_kafka_outq_len(client)) fail("produce", "not everything was acknowledged in time");
  if (failed_messages) fail("produce", rd_kafka_err2str(last_failure));
}

static int produce(const char *broker, const char *topic_name, int32_t partition, char **argv, int argc) {
  size_t size_bytes = atol(argv[0]);
  long count = atol(argv[1]), sent = 0;
  double seconds = atof(argv[2]);
  rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER, broker, argv + 3, argc - 3);
  rd_kafka_topic_t *topic = rd_kafka_topic_new(client, topic_name, NULL);
  char *payload = malloc(size_bytes);
  for (size_t i = 0; i < size_bytes; i++) payload[i] = 'a' + i % 26;

  pthread_t poller;
  pthread_create(&poller, NULL, poll_until_told, client);
  /* The first message finds the leader; connecting is not part of the throughput. */
  rd_kafka_produce(topic, partition, PRODUCE_BLOCK, payload, size_bytes, NULL, 0, NULL);
  flush_or_fail(client);

  int64_t start_ns = now_ns(), deadline_ns = start_ns + (int64_t)(seconds * 1e9);
  while (sent < count && (sent % 1024 || now_ns() < deadline_ns)) {
    if (rd_kafka_produce(topic, partition, PRODUCE_BLOCK, payload, size_bytes, NULL, 0, NULL))
      fail("produce", rd_kafka_err2str(rd_kafka_last_error()));
    sent++;
  }
  flush_or_fail(client);
  double elapsed_s = (now_ns() - start_ns) / 1e9;
  polling = 0;
  pthread_join(poller, NULL);
  printf("{\"messages\": %ld, \"seconds\": %.6f}\n", sent, elapsed_s);
  return 0;
}

static rd_kafka_queue_t *start_reading(rd_kafka_t *client, const char *topic_name) {
  rd_kafka_queue_t *queue = rd_kafka_queue_new(client);
  rd_kafka_topic_t *topic = rd_kafka_topic_new(client, topic_name, NULL);
  if (rd_kafka_consume_start_queue(topic, 0, OFFSET_BEGINNING, queue))
    fail("consume", rd_kafka_err2str(rd_kafka_last_error()));
  return queue;
}

/* Timed from the first message to the last, so that connecting is not part of it. */
static int consume(const char *broker, const char *topic_name, char **argv, int argc) {
  long count = atol(argv[0]), received = 0;
  double seconds = atof(argv[1]);
  rd_kafka_t *client = open_client(RD_KAFKA_CONSUMER, broker, argv + 2, argc - 2);
  rd_kafka_queue_t *queue = start_reading(client, topic_name);
  rd_kafka_message_t *messages[BATCH_MESSAGES];
  int64_t first_ns = 0, last_ns = 0, deadline_ns = now_ns() + (int64_t)(seconds * 1e9);
  while (received < count && now_ns() < deadline_ns) {
    ssize_t got = rd_kafka_consume_batch_queue(queue, 100, messages, BATCH_MESSAGES);
    if (got > 0 && !first_ns) first_ns = now_ns();
    for (ssize_t i = 0; i < got; i++) {
      if (messages[i]->err && messages[i]->err != ERR_PARTITION_EOF)
        fail("consume", rd_kafka_err2str(messages[i]->err));
      received += !messages[i]->err;
      rd_kafka_message_destroy(messages[i]);
    }
    if (got > 0) last_ns = now_ns();
  }
  if (!received) fail("consume", "no message arrived in time");
  printf("{\"messages\": %ld, \"seconds\": %.6f}\n", received, (last_ns - first_ns) / 1e9);
  return 0;
}

typedef struct {
  rd_kafka_queue_t *queue;
  int64_t *latency_ns;
  long expected, received, kept;
  int64_t count_from_ns, deadline_ns;
} reader_t;

static void *read_latencies(void *argument) {
  reader_t *reader = argument;
  rd_kafka_message_t *messages[BATCH_MESSAGES];
  while (reader->received < reader->expected && now_ns() < reader->deadline_ns) {
    ssize_t got = rd_kafka_consume_batch_queue(reader->queue, 100, messages, 1);
    int64_t arrived_ns = now_ns(), due_ns;
    for (ssize_t i = 0; i < got; i++) {
      if (!messages[i]->err && messages[i]->len >= sizeof due_ns) {
        memcpy(&due_ns, messages[i]->payload, sizeof due_ns);
        if (due_ns && due_ns >= reader->count_from_ns)
          reader->latency_ns[reader->kept++] = arrived_ns - due_ns;
        reader->received += due_ns != 0;
      }
      rd_kafka_message_destroy(messages[i]);
    }
  }
  return NULL;
}

/* From the moment a message was due, not sent: a producer that is held up does not flatter. */
static int latency(const char *broker, const char *topic_name, char **argv, int argc) {
  size_t size_bytes = atol(argv[0]);
  double rate = atof(argv[1]), seconds = atof(argv[2]);
  long count = (long)(rate * seconds);
  char *no_settings[] = {NULL};
  rd_kafka_t *producer = open_client(RD_KAFKA_PRODUCER, broker, argv + 3, argc - 3);
  rd_kafka_t *consumer = open_client(RD_KAFKA_CONSUMER, broker, no_settings, 0);
  rd_kafka_topic_t *topic = rd_kafka_topic_new(producer, topic_name, NULL);
  reader_t reader = {.queue = start_reading(consumer, topic_name), .expected = count};
  reader.latency_ns = malloc(count * sizeof *reader.latency_ns);
  char *payload = calloc(1, size_bytes);
  pthread_t poller, receiver;
  prctl(PR_SET_TIMERSLACK, 1);
  pthread_create(&poller, NULL, poll_until_told, producer);
  rd_kafka_produce(topic, 0, PRODUCE_COPY, payload, size_bytes, NULL, 0, NULL);
  flush_or_fail(producer);

  int64_t start_ns = now_ns() + 500000000;
  reader.count_from_ns = start_ns + WARM_UP_NS;
  reader.deadline_ns = start_ns + (int64_t)(seconds * 1e9) + 10000000000LL;
  pthread_create(&receiver, NULL, read_latencies, &reader);
  for (long i = 0; i < count; i++) {
    int64_t due_ns = start_ns + (int64_t)(i * 1e9 / rate);
    sleep_until_ns(due_ns);
    memcpy(payload, &due_ns, sizeof due_ns);
    if (rd_kafka_produce(topic, 0, PRODUCE_COPY | PRODUCE_BLOCK, payload, size_bytes, NULL, 0, NULL))
      fail("latency", rd_kafka_err2str(rd_kafka_last_error()));
  }
  flush_or_fail(producer);
  pthread_join(receiver, NULL);
  polling = 0;
  pthread_join(poller, NULL);
  if (reader.received < count || !reader.kept) fail("latency", "messages were lost or late by 10 s");
  print_percentiles(reader.latency_ns, reader.kept);
  return 0;
}

/* A member of a group that commits every record, and waits for that, before it takes the next one.
 * Timed from the first commit on, so that joining is not part of it. */
static int commit(const char *broker, const char *topic_name, char **argv, int argc) {
  long count = atol(argv[0]), committed = -1;
  double seconds = atof(argv[1]);
  rd_kafka_t *client = open_client(RD_KAFKA_CONSUMER, broker, argv + 2, argc - 2);
  rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
  rd_kafka_topic_partition_list_add(topics, topic_name, ANY_PARTITION);
  rd_kafka_poll_set_consumer(client);
  int problem = rd_kafka_subscribe(client, topics);
  if (problem) fail("commit", rd_kafka_err2str(problem));
  int64_t first_ns = 0, last_ns = 0, deadline_ns = now_ns() + JOIN_NS;
  while (committed < count && now_ns() < deadline_ns) {
    rd_kafka_message_t *message = rd_kafka_consumer_poll(client, 100);
    if (!message) continue;
    if (!message->err) {
      problem = rd_kafka_commit_message(client, message, 0);
      if (problem) fail("commit", rd_kafka_err2str(problem));
      last_ns = now_ns();
      if (++committed == 0) first_ns = last_ns, deadline_ns = last_ns + (int64_t)(seconds * 1e9);
    }
    rd_kafka_message_destroy(message);
  }
  if (committed < 1) fail("commit", "nothing was committed in time");
  printf("{\"messages\": %ld, \"seconds\": %.6f}\n", committed, (last_ns - first_ns) / 1e9);
  fflush(stdout);
  rd_kafka_consumer_close(client);
  return 0;
}

static void check(rd_kafka_error_t *error) {
  if (error) fail("transact", rd_kafka_error_string(error));
}

/* A commit is timed when all records of its transaction are acknowledged: it is only the end. */
static int transact(const char *broker, const char *topic_name, char **argv, int argc) {
  size_t size_bytes = atol(argv[0]);
  long records = atol(argv[1]), count = atol(argv[2]), done = 0, room = 1024;
  double seconds = atof(argv[3]);
  rd_kafka_t *client = open_client(RD_KAFKA_PRODUCER, broker, argv + 4, argc - 4);
  rd_kafka_topic_t *topic = rd_kafka_topic_new(client, topic_name, NULL);
  char *payload = calloc(1, size_bytes);
  int64_t *commit_ns = malloc(room * sizeof *commit_ns);
  check(rd_kafka_init_transactions(client, FLUSH_MS));
  pthread_t poller;
  pthread_create(&poller, NULL, poll_until_told, client);

  int64_t start_ns = 0, end_ns = 0, deadline_ns = 0;
  for (long number = -1; number < count; number++) {
    if (number == 0) { /* the first one found leaders and coordinators */
      start_ns = now_ns();
      deadline_ns = start_ns + (int64_t)(seconds * 1e9);
    }
    check(rd_kafka_begin_transaction(client));
    for (long i = 0; i < records; i++)
      if (rd_kafka_produce(topic, 0, PRODUCE_BLOCK, payload, size_bytes, NULL, 0, NULL))
        fail("transact", rd_kafka_err2str(rd_kafka_last_error()));
    flush_or_fail(client);
    int64_t flushed_ns = now_ns();
    check(rd_kafka_commit_transaction(client, FLUSH_MS));
    if (number < 0) continue;
    end_ns = now_ns();
    if (done == room) commit_ns = realloc(commit_ns, (room *= 2) * sizeof *commit_ns);
    commit_ns[done++] = end_ns - flushed_ns;
    if (end_ns >= deadline_ns) break;
  }
  polling = 0;
  pthread_join(poller, NULL);
  if (!done) fail("transact", "nothing was committed");
  qsort(commit_ns, done, sizeof *commit_ns, by_value);
  printf("{\"messages\": %ld, \"seconds\": %.6f, \"p50_ms\": %.4f, \"p99_ms\": %.4f}\n", done,
         (end_ns - start_ns) / 1e9, commit_ns[done / 2] / 1e6, commit_ns[done * 99 / 100] / 1e6);
  return 0;
}

int main(int argc, char **argv) {
  if (argc >= 7 && !strcmp(argv[1], "produce")) return produce(argv[2], argv[3], 0, argv + 4, argc - 4);
  if (argc >= 7 && !strcmp(argv[1], "spread"))
    return produce(argv[2], argv[3], ANY_PARTITION, argv + 4, argc - 4);
  if (argc >= 6 && !strcmp(argv[1], "consume")) return consume(argv[2], argv[3], argv + 4, argc - 4);
  if (argc >= 7 && !strcmp(argv[1], "latency")) return latency(argv[2], argv[3], argv + 4, argc - 4);
  if (argc >= 6 && !strcmp(argv[1], "commit")) return commit(argv[2], argv[3], argv + 4, argc - 4);
  if (argc >= 8 && !strcmp(argv[1], "transact")) return transact(argv[2], argv[3], argv + 4, argc - 4);
  fail("usage", "rdkafka produce|consume|latency|commit|transact HOST:PORT TOPIC ...");
}
