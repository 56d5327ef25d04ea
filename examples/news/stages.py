"""The pipeline on Spark: four streams, each a function from data frames to a data frame.

    articles.raw ──clean──> articles.clean ──trends──> articles.trends
                                  └── and articles.clicks ──recommend──> articles.recommended
    all of them ──archive──> a Delta table

The functions know nothing of topics: they take what was read and say what is to be written. What
ties them to a broker is at the end of the file.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the common alias
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from examples.news import topics
from examples.news.audit import Fingerprinted
from ottla.spark import with_json_values

SAME_STORY_FOR: Final = "7 days"  # a title that comes again after that is a new story
WINDOW: Final = "6 hours"
LATE_BY_AT_MOST: Final = "7 days"  # older articles change no window any more
CANDIDATES_MAX: Final = 500  # what is recommended is among the newest
RECOMMENDED_COUNT: Final = 3

ARTICLE: Final = (
    "id STRING, feed STRING, title STRING, link STRING, summary STRING,"
    " topics ARRAY<STRING>, published STRING"
)
CLICK: Final = "reader STRING, article STRING"
_PREFIX: Final = r"^\s*(breaking|exclusive|live|update|video|watch)( \d+)?\s*:"
_JOINING: Final = "['\u2019\u2010\u2011-]"  # re-opens is reopens
_PUNCTUATION: Final = r"[^\p{L}\p{N}]+"
_SMALL_WORDS: Final = ("a", "an", "and", "as", "at", "by", "for", "in", "of", "on", "the", "to")


# The stages


def clean(raw: DataFrame) -> DataFrame:
    """Each article once, as it came first: of all feeds, and of all ways to write its title."""
    return (
        normalise(raw)
        .withWatermark("crawled", SAME_STORY_FOR)
        .dropDuplicatesWithinWatermark(["id"])
        .dropDuplicatesWithinWatermark(["fingerprint"])
    )


def normalise(raw: DataFrame) -> DataFrame:
    """Articles with normalised topics and times, and a fingerprint of the title.

    Records without id or title are no articles.
    """
    topics_given = F.coalesce("topics", F.array().cast("array<string>"))
    published = F.coalesce(F.try_to_timestamp("published"), F.col("crawled"))
    return raw.where("id IS NOT NULL AND title IS NOT NULL").select(
        "id",
        "feed",
        "title",
        "link",
        "summary",
        F.array_distinct(F.transform(topics_given, lambda one: F.lower(F.trim(one)))).alias(
            "topics"
        ),
        # Nothing was published after it was found: one clock that is wrong would make all others
        # look late.
        F.least(published, "crawled").alias("published"),
        fingerprint(F.col("title"), F.col("feed"), F.col("id")).alias("fingerprint"),
        "crawled",
    )


def fingerprint(title: Column, feed: Column, otherwise: Column) -> Column:
    """The words that matter in a title, sorted: the same for titles that say the same.

    Without its announcement (UPDATE:), the name of its feed at the end, punctuation, and small
    words. `otherwise` stands for a title of which nothing is left.
    """
    lowered, name = F.lower(title), F.lower(feed)
    without_name = F.when(
        (name != "") & F.endswith(lowered, name),
        F.left(lowered, F.length(lowered) - F.length(name)),
    ).otherwise(lowered)
    plain = F.regexp_replace(F.regexp_replace(without_name, _PREFIX, ""), _JOINING, "")
    words = F.split(F.trim(F.regexp_replace(plain, _PUNCTUATION, " ")), " ")
    small = F.array(*map(F.lit, ("", *_SMALL_WORDS)))
    left = F.concat_ws(" ", F.array_sort(F.array_except(words, small)))
    return F.when(left == "", otherwise).otherwise(left)


def count_topics(articles: DataFrame) -> DataFrame:
    """The number of articles about each topic, in windows of their publication."""
    return (
        articles.withWatermark("published", LATE_BY_AT_MOST)
        .select("published", F.explode("topics").alias("topic"))
        .groupBy(F.window("published", WINDOW), "topic")
        .agg(F.count("*").alias("articles"))
        .select("window.start", "window.end", "topic", "articles")
    )


def recommend(clicks: DataFrame, articles: DataFrame) -> DataFrame:
    """For each reader who clicks: new articles about what that reader has read most about.

    `clicks` is a stream; `articles` is what is known when a batch of clicks is worked on. What
    readers have read is kept for ever.
    """
    known = articles.dropDuplicates(["id"])
    candidates = (
        known.orderBy(F.desc("published"), "id")
        .limit(CANDIDATES_MAX)
        .agg(F.collect_list(F.struct("id", "title", "topics", "published")).alias("candidates"))
    )
    readers = (
        clicks.join(known.select(F.col("id").alias("article"), "topics"), "article")
        .groupBy("reader")
        .agg(F.collect_set(F.struct("article", "topics")).alias("history"))
    )
    return readers.crossJoin(F.broadcast(candidates)).select(
        "reader",
        F.size("history").alias("read"),
        best_of(F.col("candidates"), F.col("history")).alias("articles"),
    )


def best_of(candidates: Column, history: Column) -> Column:
    """The unread articles with the highest scores; of equal ones the newest."""
    interests = F.flatten(history["topics"])  # a topic is in it once for each article about it

    def score(topics_of_one: Column) -> Column:
        return F.aggregate(
            topics_of_one,
            F.lit(0),
            lambda total, topic: total + F.size(F.filter(interests, lambda one: one == topic)),
        )

    unread = F.filter(candidates, lambda one: ~F.array_contains(history["article"], one["id"]))
    ranked = F.array_sort(
        F.transform(
            unread,
            lambda one: F.struct(
                (-score(one["topics"])).alias("rank"),
                (-F.unix_micros(one["published"])).alias("age"),
                one["id"].alias("id"),
                one["title"].alias("title"),
            ),
        )
    )
    liked = F.filter(F.slice(ranked, 1, RECOMMENDED_COUNT), lambda one: one["rank"] < 0)
    return F.transform(
        liked, lambda one: F.struct(one["id"], one["title"], (-one["rank"]).alias("score"))
    )


def archive(records: DataFrame) -> DataFrame:
    """Every record as it was written, and where it was."""
    return records.select(
        "topic", "partition", "offset", "timestamp", F.col("key").cast("string"), "value"
    )


# Running them


@dataclass(frozen=True, slots=True)
class StageContext:
    """The session, the broker, and the directory for checkpoints and the lake."""

    spark: SparkSession
    address: str
    home: Path
    is_once: bool  # streams end when they have read the existing records

    @property
    def lake(self) -> Path:
        return self.home / "lake"


def start_clean(context: StageContext) -> StreamingQuery:
    articles = clean(articles_of(context, topics.RAW, "clean")).drop("crawled")
    writer = (
        as_records(articles, F.col("id"))
        .writeStream.format("ottla")
        .option("kafka.bootstrap.servers", context.address)
        .option("topic", topics.CLEAN)
    )
    return start(context, "clean", writer)


def start_trends(context: StageContext) -> StreamingQuery:
    counts = count_topics(published_articles(articles_of(context, topics.CLEAN, "trends")))
    key = F.concat_ws(" ", F.date_format("start", "yyyy-MM-dd'T'HH:mm"), "topic")
    return start(context, "trends", changes_to(context, as_records(counts, key), topics.TRENDS))


def start_recommend(context: StageContext) -> StreamingQuery:
    clicks = values(stream(context, topics.CLICKS, "recommend"), CLICK)
    known = published_articles(values(batch(context, topics.CLEAN), ARTICLE))
    advice = as_records(recommend(clicks, known), F.col("reader"))
    return start(context, "recommend", changes_to(context, advice, topics.RECOMMENDED))


def start_archive(context: StageContext) -> StreamingQuery:
    records = (
        context.spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", context.address)
        .option("subscribe", ",".join(topics.ARCHIVED))
        .option("startingOffsets", "earliest")
        .option("valueFormat", "string")
        .option("commitGroup", "news-archive")
        .load()
    )
    writer = archive(records).writeStream.format("ottla-delta").option("path", str(context.lake))
    return start(context, "archive", writer)


# What the audit compares with


def normalised_batch(context: StageContext, topic: str) -> list[Fingerprinted]:
    """The articles of a topic as `clean` compares them, in the order of their records."""
    articles = values(batch(context, topic), ARTICLE).where("id IS NOT NULL AND title IS NOT NULL")
    rows = articles.select(
        "id",
        fingerprint(F.col("title"), F.col("feed"), F.col("id")).alias("title"),
        F.col("crawled").cast("double").alias("at_s"),
    )
    return [Fingerprinted(row["id"], row["title"], row["at_s"]) for row in rows.collect()]


def recount_topics(context: StageContext) -> Counter[tuple[str, str]]:
    """The articles of each window and topic, counted at once; by the start that records have."""
    articles = published_articles(values(batch(context, topics.CLEAN), ARTICLE))
    counts = count_topics(articles).select("topic", "articles", F.to_json(F.struct("start")))
    return Counter(
        {
            (json.loads(start)["start"], topic): articles
            for topic, articles, start in counts.collect()
        }
    )


STAGES: Final[Mapping[str, Callable[[StageContext], StreamingQuery]]] = {
    "clean": start_clean,
    "trends": start_trends,
    "recommend": start_recommend,
    "archive": start_archive,
}


def stream(context: StageContext, topic: str, stage: str) -> DataFrame:
    """A topic from its beginning; the group shows how far the stage has come."""
    return (
        context.spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", context.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("commitGroup", f"news-{stage}")
        .load()
    )


def batch(context: StageContext, topic: str) -> DataFrame:
    """A topic as it is now."""
    return (
        context.spark.read.format("ottla")
        .option("kafka.bootstrap.servers", context.address)
        .option("subscribe", topic)
        .load()
    )


def values(records: DataFrame, schema: str) -> DataFrame:
    """The fields of JSON values and their write time; values that are not JSON are skipped."""
    typed = with_json_values(records, schema).where("value IS NOT NULL AND _corrupt IS NULL")
    return typed.select("value.*", F.col("timestamp").alias("crawled"))


def articles_of(context: StageContext, topic: str, stage: str) -> DataFrame:
    return values(stream(context, topic, stage), ARTICLE)


def published_articles(articles: DataFrame) -> DataFrame:
    """Clean articles with their time as a time."""
    return articles.withColumn("published", F.try_to_timestamp("published"))


def as_records(rows: DataFrame, key: Column) -> DataFrame:
    """Rows as JSON, each under its key."""
    return rows.select(key.alias("key"), F.to_json(F.struct("*")).alias("value"))


def changes_to(context: StageContext, records: DataFrame, topic: str) -> DataStreamWriter:
    """Writes what has changed in each batch, for topics in which the last record of a key holds.

    Spark offers update mode to no sink in Python, so each batch is written by itself. One that a
    crash makes Spark repeat is written again, under the same keys.
    """

    def write(batch: DataFrame, number: int) -> None:
        (
            batch.write.format("ottla")
            .mode("append")
            .option("kafka.bootstrap.servers", context.address)
            .option("topic", topic)
            .save()
        )

    return records.writeStream.outputMode("update").foreachBatch(write)


def start(context: StageContext, stage: str, writer: DataStreamWriter) -> StreamingQuery:
    named = writer.queryName(stage).option(
        "checkpointLocation", str(context.home / "checkpoints" / stage)
    )
    if context.is_once:
        return named.trigger(availableNow=True).start()
    return named.trigger(processingTime="1 second").start()
