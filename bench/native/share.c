/* Share groups through librdkafka: records are acquired, accepted and committed.
 *
 *   share drain HOST:PORT TOPIC CONSUMERS COUNT SECONDS [name=value ...]
 *   share pace HOST:PORT TOPIC SIZE_BYTES RATE SECONDS DELAY_MS [name=value ...]
 *
 * name=value are librdkafka's settings of the consumers, which belong to one group and acknowledge
 * explicitly. A poll, an acknowledgement of all its records, a commit that waits for the answer: then
 * the next poll. drain: timed from the moment when every consumer has committed once. pace: from the
 * moment a record was due until the commit that acknowledges it has been answered; DELAY_MS other
 * than 0 has Ottla hold each record back so long, and is part of the time.
 * The result is one JSON object on stdout; anything wrong is one line on stderr and status 1.
 * As in rdkafka.c, declarations are written out here: the wheel ships no headers. Those of share
 * consumers are of librdkafka 2.16, which calls them a preview.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#include "timing.h"

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_share_s rd_kafka_share_t;
typedef struct rd_kafka_messages_s rd_kafka_messages_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct {
  int err;
  void *rkt;
  int32_t partition;
  void *payload;
  size_t len;
  void *key;
  size_t key_len;
  int64_t offset;
  void *opaque;
} rd_kafka_message_t;
typedef struct {
  char *topic;
  int32_t partition;
  int64_t offset;
  void *metadata;
  size_t metadata_size;
  void *opaque;
  int err;
  void *internal;
} rd_kafka_topic_partition_t;
typedef struct {
  int cnt, size;
  rd_kafka_topic_partition_t *elems;
} rd_kafka_topic_partition_list_t;
enum { RD_KAFKA_PRODUCER, ANY_PARTITION = -1 };
enum { VTYPE_END, VTYPE_TOPIC, VTYPE_RKT, VTYPE_PARTITION, VTYPE_VALUE, VTYPE_MSGFLAGS = 7 };
enum { VTYPE_HEADER = 9, PRODUCE_COPY = 0x2, PRODUCE_BLOCK = 0x4 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
void rd_kafka_conf_set_dr_msg_cb(rd_kafka_conf_t *,
                                 void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
int rd_kafka_producev(rd_kafka_t *, ...);
int rd_kafka_poll(rd_kafka_t *, int);
int rd_kafka_flush(rd_kafka_t *, int);
int rd_kafka_outq_len(rd_kafka_t *);
const char *rd_kafka_err2str(int);
const char *rd_kafka_error_string(const rd_kafka_error_t *);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int);
void *rd_kafka_topic_partition_list_add(rd_kafka_topic_partition_list_t *, const char *, int32_t);
void rd_kafka_topic_partition_list_destroy(rd_kafka_topic_partition_list_t *);
rd_kafka_share_t *rd_kafka_share_consumer_new(rd_kafka_conf_t *, char *, size_t);
int rd_kafka_share_subscribe(rd_kafka_share_t *, const rd_kafka_topic_partition_list_t *);
rd_kafka_error_t *rd_kafka_share_poll(rd_kafka_share_t *, int, rd_kafka_messages_t **);
size_t rd_kafka_messages_count(const rd_kafka_messages_t *);
rd_kafka_message_t *rd_kafka_messages_get(const rd_kafka_messages_t *, size_t);
void rd_kafka_messages_destroy(rd_kafka_messages_t *);
int rd_kafka_share_acknowledge(rd_kafka_share_t *, const rd_kafka_message_t *);
rd_kafka_error_t *rd_kafka_share_commit_sync(rd_kafka_share_t *, int,
                                             rd_kafka_topic_partition_list_t **);
rd_kafka_error_t *rd_kafka_share_consumer_close(rd_kafka_share_t *);

enum { POLL_MS = 200, COMMIT_MS = 10000, FLUSH_MS = 30000, CONSUMERS_MAX = 64 };

typedef struct {
  rd_kafka_share_t *client;
  pthread_t thread;
  long counted;    /* records whose acknowledgement was answered after the start */
  int64_t last_ns; /* when the last of them was */
} consumer_t;

static consumer_t consumers[CONSUMERS_MAX];
static atomic_long acknowledged; /* by all consumers, the first polls included */
static atomic_int joined, started;
static long wanted;
static int64_t deadline_ns;
static int64_t *latency_ns, count_from_ns;
static long latency_count;
static atomic_int polling = 1, failed;

static void check(rd_kafka_error_t *error, const char *what) {
  if (error) fail(what, rd_kafka_error_string(error));
}

static rd_kafka_conf_t *settings_of(const char *broker, char **settings, int count) {
  char why[512];
  rd_kafka_conf_t *conf = rd_kafka_conf_new();
  if (rd_kafka_conf_set(conf, "bootstrap.servers", broker, why, sizeof why)) fail("settings", why);
  for (int i = 0; i < count; i++) {
    char *name = strdup(settings[i]), *value = strchr(name, '=');
    if (!value) fail("settings", settings[i]);
    *value++ = 0;
    if (rd_kafka_conf_set(conf, name, value, why, sizeof why)) fail("settings", why);
    free(name);
  }
  return conf;
}

static void open_consumer(consumer_t *consumer, const char *broker, const char *topic,
                          char **settings, int setting_count) {
  char why[512];
  rd_kafka_conf_t *conf = settings_of(broker, settings, setting_count);
  if (rd_kafka_conf_set(conf, "share.acknowledgement.mode", "explicit", why, sizeof why))
    fail("settings", why);
  consumer->client = rd_kafka_share_consumer_new(conf, why, sizeof why);
  if (!consumer->client) fail("client", why);
  rd_kafka_topic_partition_list_t *topics = rd_kafka_topic_partition_list_new(1);
  rd_kafka_topic_partition_list_add(topics, topic, ANY_PARTITION);
  int problem = rd_kafka_share_subscribe(consumer->client, topics);
  if (problem) fail("subscribe", rd_kafka_err2str(problem));
  rd_kafka_topic_partition_list_destroy(topics);
}

/* Accepts all records of a poll and waits until the broker has answered that. */
static void accept_all(rd_kafka_share_t *client, const rd_kafka_messages_t *messages) {
  rd_kafka_topic_partition_list_t *results = NULL;
  for (size_t i = 0; i < rd_kafka_messages_count(messages); i++) {
    const rd_kafka_message_t *message = rd_kafka_messages_get(messages, i);
    if (message->err) fail("poll", rd_kafka_err2str(message->err));
    int problem = rd_kafka_share_acknowledge(client, message);
    if (problem) fail("acknowledge", rd_kafka_err2str(problem));
  }
  check(rd_kafka_share_commit_sync(client, COMMIT_MS, &results), "commit");
  if (!results) fail("commit", "there was nothing to commit");
  for (int i = 0; i < results->cnt; i++)
    if (results->elems[i].err) fail("commit", rd_kafka_err2str(results->elems[i].err));
  rd_kafka_topic_partition_list_destroy(results);
}

static void note_latencies(const rd_kafka_messages_t *messages) {
  int64_t answered_ns = now_ns(), due_ns;
  for (size_t i = 0; i < rd_kafka_messages_count(messages); i++) {
    const rd_kafka_message_t *message = rd_kafka_messages_get(messages, i);
    if (message->len < sizeof due_ns) continue;
    memcpy(&due_ns, message->payload, sizeof due_ns);
    if (due_ns >= count_from_ns && latency_count < wanted)
      latency_ns[latency_count++] = answered_ns - due_ns;
  }
}

/* Returns how many records one poll brought; all of them are acknowledged. */
static long take(consumer_t *consumer) {
  rd_kafka_messages_t *messages = NULL;
  check(rd_kafka_share_poll(consumer->client, POLL_MS, &messages), "poll");
  long count = rd_kafka_messages_count(messages);
  if (count) accept_all(consumer->client, messages);
  if (count && latency_ns) note_latencies(messages);
  rd_kafka_messages_destroy(messages);
  acknowledged += count;
  return count;
}

static void *consume(void *argument) {
  consumer_t *consumer = argument;
  int64_t join_by_ns = now_ns() + JOIN_NS;
  while (!take(consumer))
    if (now_ns() > join_by_ns) fail("join", "a consumer got no record in time");
  joined++;
  while (!started) sleep_until_ns(now_ns() + 100000);
  while (acknowledged < wanted && now_ns() < deadline_ns) {
    long count = take(consumer);
    if (count) consumer->counted += count, consumer->last_ns = now_ns();
  }
  return NULL;
}

static int drain(const char *broker, const char *topic, char **argv, int argc) {
  int count = atoi(argv[0]);
  double seconds = atof(argv[2]);
  wanted = atol(argv[1]);
  if (count < 1 || count > CONSUMERS_MAX) fail("drain", "too many consumers, or none");
  for (int i = 0; i < count; i++) {
    open_consumer(&consumers[i], broker, topic, argv + 3, argc - 3);
    pthread_create(&consumers[i].thread, NULL, consume, &consumers[i]);
  }
  while (joined < count) sleep_until_ns(now_ns() + 100000);
  int64_t start_ns = now_ns(), last_ns = start_ns;
  deadline_ns = start_ns + (int64_t)(seconds * 1e9);
  started = 1;
  long counted = 0;
  for (int i = 0; i < count; i++) {
    pthread_join(consumers[i].thread, NULL);
    counted += consumers[i].counted;
    if (consumers[i].last_ns > last_ns) last_ns = consumers[i].last_ns;
  }
  print_rate(counted, last_ns - start_ns);
  for (int i = 0; i < count; i++) rd_kafka_share_consumer_close(consumers[i].client);
  return 0;
}

static void note_delivery(rd_kafka_t *client, const rd_kafka_message_t *message, void *opaque) {
  (void)client, (void)opaque;
  if (message->err) failed = message->err;
}

static rd_kafka_t *open_producer(const char *broker) {
  char why[512], *settings[] = {"acks=1", "linger.ms=0", "delivery.report.only.error=true"};
  rd_kafka_conf_t *conf = settings_of(broker, settings, 3);
  rd_kafka_conf_set_dr_msg_cb(conf, note_delivery);
  rd_kafka_t *client = rd_kafka_new(RD_KAFKA_PRODUCER, conf, why, sizeof why);
  if (!client) fail("client", why);
  return client;
}

static void *poll_until_told(void *client) {
  while (polling) rd_kafka_poll(client, 50);
  return NULL;
}

static void put(rd_kafka_t *producer, const char *topic, void *payload, size_t size_bytes,
                const char *delay_ms) {
  const int flags = PRODUCE_COPY | PRODUCE_BLOCK, partition = 0;
  int problem;
  if (atoi(delay_ms))
    problem = rd_kafka_producev(producer, VTYPE_TOPIC, topic, VTYPE_PARTITION, partition,
                                VTYPE_MSGFLAGS, flags, VTYPE_VALUE, payload, size_bytes, VTYPE_HEADER,
                                "ottla.delay-ms", delay_ms, (ssize_t)strlen(delay_ms), VTYPE_END);
  else
    problem = rd_kafka_producev(producer, VTYPE_TOPIC, topic, VTYPE_PARTITION, partition,
                                VTYPE_MSGFLAGS, flags, VTYPE_VALUE, payload, size_bytes, VTYPE_END);
  if (problem) fail("produce", rd_kafka_err2str(problem));
}

static void flush_or_fail(rd_kafka_t *producer) {
  rd_kafka_flush(producer, FLUSH_MS);
  if (rd_kafka_outq_len(producer)) fail("produce", "not everything was acknowledged in time");
  if (failed) fail("produce", rd_kafka_err2str(failed));
}

/* From the moment a record was due, not sent: a producer that is held up does not flatter. */
static int pace(const char *broker, const char *topic, char **argv, int argc) {
  size_t size_bytes = atol(argv[0]);
  double rate = atof(argv[1]), seconds = atof(argv[2]);
  const char *delay_ms = argv[3];
  rd_kafka_t *producer = open_producer(broker);
  char *payload = calloc(1, size_bytes);
  pthread_t poller;
  wanted = 1 + (long)(rate * seconds); /* one more: the first has consumer and producer meet */
  latency_ns = malloc(wanted * sizeof *latency_ns);
  count_from_ns = INT64_MAX;
  deadline_ns = now_ns() + JOIN_NS;
  prctl(PR_SET_TIMERSLACK, 1);
  pthread_create(&poller, NULL, poll_until_told, producer);
  open_consumer(&consumers[0], broker, topic, argv + 4, argc - 4);
  put(producer, topic, payload, size_bytes, delay_ms);
  flush_or_fail(producer);
  pthread_create(&consumers[0].thread, NULL, consume, &consumers[0]);
  while (!joined) sleep_until_ns(now_ns() + 100000);
  int64_t start_ns = now_ns() + 500000000;
  count_from_ns = start_ns + WARM_UP_NS;
  deadline_ns = start_ns + (int64_t)(seconds * 1e9) + GRACE_NS;
  started = 1;
  for (long i = 0; i < wanted - 1; i++) {
    int64_t due_ns = start_ns + (int64_t)(i * 1e9 / rate);
    sleep_until_ns(due_ns);
    memcpy(payload, &due_ns, sizeof due_ns);
    put(producer, topic, payload, size_bytes, delay_ms);
  }
  flush_or_fail(producer);
  pthread_join(consumers[0].thread, NULL);
  polling = 0;
  pthread_join(poller, NULL);
  if (acknowledged < wanted) fail("pace", "records were lost or late by 10 s");
  print_percentiles(latency_ns, latency_count);
  rd_kafka_share_consumer_close(consumers[0].client);
  return 0;
}

int main(int argc, char **argv) {
  if (argc >= 7 && !strcmp(argv[1], "drain")) return drain(argv[2], argv[3], argv + 4, argc - 4);
  if (argc >= 8 && !strcmp(argv[1], "pace")) return pace(argv[2], argv[3], argv + 4, argc - 4);
  fail("usage", "share drain|pace HOST:PORT TOPIC ...");
}
