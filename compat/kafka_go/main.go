// Scenarios with kafka-go (segmentio): `kafka_go HOST:PORT SCENARIO` plays one and exits with 0, or prints why it
// failed and exits with 1. `kafka_go --list` names them.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/segmentio/kafka-go"
)

const patience = 60 * time.Second

type cluster struct {
	address string
	client  *kafka.Client
	run     string
	names   int
}

type scenario func(context.Context, *cluster) error

var scenarios = map[string]scenario{
	"records_keep_everything_with_none":          func(ctx context.Context, c *cluster) error { return keep(ctx, c, 0) },
	"records_keep_everything_with_gzip":          func(ctx context.Context, c *cluster) error { return keep(ctx, c, kafka.Gzip) },
	"records_keep_everything_with_snappy":        func(ctx context.Context, c *cluster) error { return keep(ctx, c, kafka.Snappy) },
	"records_keep_everything_with_lz4":           func(ctx context.Context, c *cluster) error { return keep(ctx, c, kafka.Lz4) },
	"records_keep_everything_with_zstd":          func(ctx context.Context, c *cluster) error { return keep(ctx, c, kafka.Zstd) },
	"acks_none":                                  func(ctx context.Context, c *cluster) error { return acks(ctx, c, kafka.RequireNone) },
	"acks_one":                                   func(ctx context.Context, c *cluster) error { return acks(ctx, c, kafka.RequireOne) },
	"acks_all":                                   func(ctx context.Context, c *cluster) error { return acks(ctx, c, kafka.RequireAll) },
	"keys_choose_partitions":                     keys,
	"a_topic_is_made_by_its_first_record":        automatic,
	"seek_by_offset_and_time":                    seek,
	"a_reader_waits_for_what_comes":              wait,
	"a_group_shares_partitions":                  share,
	"a_group_goes_on_where_it_was":               goOn,
	"a_member_takes_over":                        takeOver,
	"a_topic_is_made_described_and_deleted":      topics,
	"a_topic_that_exists_is_refused":             exists,
	"partitions_are_added":                       partitions,
	"settings_are_described_and_changed":         settings,
	"offsets_are_listed":                         offsets,
	"groups_are_listed_and_described":            groups,
	"groups_and_their_offsets_are_deleted":       deleteGroup,
	"offsets_of_an_aborted_transaction_are_gone": transactionalOffsets,
	"a_transaction_begins_and_ends":              transaction,
	"a_connection_reads_and_writes":              connection,
	"too_large_is_refused":                       tooLarge,
}

func main() {
	if os.Args[1] == "--list" {
		names := []string{}
		for name := range scenarios {
			names = append(names, name)
		}
		sort.Strings(names)
		for _, name := range names {
			fmt.Println(name)
		}
		return
	}
	play, found := scenarios[os.Args[2]]
	if !found {
		fmt.Println("no such scenario:", os.Args[2])
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	address := os.Args[1]
	c := &cluster{
		address: address,
		client:  &kafka.Client{Addr: kafka.TCP(address), Timeout: patience},
		run:     fmt.Sprintf("go-%d", time.Now().UnixNano()),
	}
	if problem := play(ctx, c); problem != nil {
		fmt.Println(problem)
		os.Exit(1)
	}
}

func (c *cluster) newName() string {
	c.names++
	return fmt.Sprintf("%s-%d", c.run, c.names)
}

func (c *cluster) newTopic(ctx context.Context, partitions int, entries ...kafka.ConfigEntry) (string, error) {
	name := c.newName()
	made, problem := c.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{
		{Topic: name, NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: entries},
	}})
	if problem != nil {
		return "", problem
	}
	return name, made.Errors[name]
}

func (c *cluster) writer(topic string) *kafka.Writer {
	return &kafka.Writer{
		Addr: kafka.TCP(c.address), Topic: topic, RequiredAcks: kafka.RequireAll, BatchTimeout: 10 * time.Millisecond,
	}
}

func (c *cluster) write(ctx context.Context, topic string, count int) error {
	writer := c.writer(topic)
	defer writer.Close()
	return writer.WriteMessages(ctx, numbered(count)...)
}

func numbered(count int) []kafka.Message {
	messages := make([]kafka.Message, count)
	for i := range messages {
		messages[i] = kafka.Message{Key: []byte(fmt.Sprintf("key-%d", i)), Value: []byte(fmt.Sprintf("value-%d", i))}
	}
	return messages
}

func (c *cluster) reader(topic string, partition int) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{c.address}, Topic: topic, Partition: partition, MaxWait: 200 * time.Millisecond,
	})
}

func (c *cluster) member(group, topic string) *kafka.Reader {
	return kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{c.address}, GroupID: group, Topic: topic, MaxWait: 200 * time.Millisecond,
		StartOffset: kafka.FirstOffset, SessionTimeout: 6 * time.Second, HeartbeatInterval: time.Second,
		RebalanceTimeout: 10 * time.Second,
	})
}

func read(ctx context.Context, reader *kafka.Reader, count int) ([]kafka.Message, error) {
	found := []kafka.Message{}
	for len(found) < count {
		one, problem := reader.ReadMessage(ctx)
		if problem != nil {
			return nil, fmt.Errorf("after %d of %d: %w", len(found), count, problem)
		}
		found = append(found, one)
	}
	return found, nil
}

func expect(holds bool, what string, found ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf("%s: %v", what, found)
}

func first(problems ...error) error { return errors.Join(problems...) }

func keep(ctx context.Context, c *cluster, codec kafka.Compression) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	writer := c.writer(topic)
	writer.Compression = codec
	defer writer.Close()
	at := time.UnixMilli(time.Now().UnixMilli() - 5000)
	sent := []kafka.Message{
		{Key: []byte("key"), Value: bytes.Repeat([]byte("value "), 1000), Time: at,
			Headers: []kafka.Header{{Key: "one", Value: []byte("1")}, {Key: "empty", Value: []byte{}}}},
		{Key: nil, Value: []byte("no key"), Time: at},
		{Key: []byte("no value"), Value: nil, Time: at},
	}
	if problem := writer.WriteMessages(ctx, sent...); problem != nil {
		return problem
	}
	reader := c.reader(topic, 0)
	defer reader.Close()
	found, problem := read(ctx, reader, len(sent))
	if problem != nil {
		return problem
	}
	for i, one := range found {
		problem = first(problem,
			expect(bytes.Equal(one.Key, sent[i].Key) && (one.Key == nil) == (sent[i].Key == nil), "key", one.Key),
			expect(bytes.Equal(one.Value, sent[i].Value) && (one.Value == nil) == (sent[i].Value == nil), "value", i),
			expect(one.Time.Equal(at), "time", one.Time, at),
			expect(one.Offset == int64(i), "offset", one.Offset),
			expect(len(one.Headers) == len(sent[i].Headers), "headers", one.Headers))
	}
	return problem
}

func acks(ctx context.Context, c *cluster, required kafka.RequiredAcks) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	writer := c.writer(topic)
	writer.RequiredAcks = required
	defer writer.Close()
	if problem := writer.WriteMessages(ctx, numbered(50)...); problem != nil {
		return problem
	}
	reader := c.reader(topic, 0)
	defer reader.Close()
	_, problem = read(ctx, reader, 50)
	return problem
}

func keys(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 4)
	if problem != nil {
		return problem
	}
	writer := c.writer(topic)
	writer.Balancer = kafka.Murmur2Balancer{Consistent: true}
	defer writer.Close()
	if problem := writer.WriteMessages(ctx, append(numbered(40), numbered(40)...)...); problem != nil {
		return problem
	}
	places := map[string]int{}
	member := c.member(c.newName(), topic)
	defer member.Close()
	found, problem := read(ctx, member, 80)
	for _, one := range found {
		if place, seen := places[string(one.Key)]; seen && place != one.Partition {
			return fmt.Errorf("%s is in %d and %d", one.Key, place, one.Partition)
		}
		places[string(one.Key)] = one.Partition
	}
	return first(problem, expect(len(places) == 40, "keys", len(places)))
}

func automatic(ctx context.Context, c *cluster) error {
	topic := c.newName()
	writer := c.writer(topic)
	writer.AllowAutoTopicCreation = true
	defer writer.Close()
	for {
		problem := writer.WriteMessages(ctx, numbered(1)...)
		if problem == nil {
			break
		}
		if !errors.Is(problem, kafka.LeaderNotAvailable) && !errors.Is(problem, kafka.UnknownTopicOrPartition) {
			return problem
		}
	}
	reader := c.reader(topic, 0)
	defer reader.Close()
	_, problem := read(ctx, reader, 1)
	return problem
}

func seek(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	start := time.UnixMilli(time.Now().UnixMilli() - 100000)
	messages := numbered(100)
	for i := range messages {
		messages[i].Time = start.Add(time.Duration(i) * time.Second)
	}
	writer := c.writer(topic)
	defer writer.Close()
	if problem := writer.WriteMessages(ctx, messages...); problem != nil {
		return problem
	}
	reader := c.reader(topic, 0)
	defer reader.Close()
	if problem := reader.SetOffset(70); problem != nil {
		return problem
	}
	found, problem := read(ctx, reader, 1)
	if problem != nil {
		return problem
	}
	problem = expect(found[0].Offset == 70, "offset", found[0].Offset)
	if problem := first(problem, reader.SetOffsetAt(ctx, start.Add(30*time.Second))); problem != nil {
		return problem
	}
	found, problem = read(ctx, reader, 1)
	if problem != nil {
		return problem
	}
	return expect(found[0].Offset == 30, "offset by time", found[0].Offset)
}

func wait(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	reader := c.reader(topic, 0)
	defer reader.Close()
	came := make(chan error, 1)
	go func() {
		_, problem := read(ctx, reader, 1)
		came <- problem
	}()
	if problem := c.write(ctx, topic, 1); problem != nil {
		return problem
	}
	return <-came
}

func share(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 4)
	if problem != nil {
		return problem
	}
	group := c.newName()
	one, two := c.member(group, topic), c.member(group, topic)
	defer one.Close()
	defer two.Close()
	if problem := c.awaitMembers(ctx, group, 2); problem != nil {
		return problem
	}
	if problem := c.write(ctx, topic, 200); problem != nil {
		return problem
	}
	values := make(chan string, 400)
	collecting, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, member := range []*kafka.Reader{one, two} {
		go func() {
			for {
				message, problem := member.ReadMessage(collecting)
				if problem != nil {
					return
				}
				values <- string(message.Value)
			}
		}()
	}
	seen := map[string]bool{}
	for len(seen) < 200 {
		select {
		case value := <-values:
			seen[value] = true
		case <-ctx.Done():
			return fmt.Errorf("only %d of 200 came", len(seen))
		}
	}
	return nil
}

func (c *cluster) describe(ctx context.Context, group string) (kafka.DescribeGroupsResponseGroup, error) {
	described, problem := c.client.DescribeGroups(ctx, &kafka.DescribeGroupsRequest{GroupIDs: []string{group}})
	if problem != nil {
		return kafka.DescribeGroupsResponseGroup{}, problem
	}
	return described.Groups[0], described.Groups[0].Error
}

func (c *cluster) awaitMembers(ctx context.Context, group string, count int) error {
	for {
		described, problem := c.describe(ctx, group)
		if problem == nil && described.GroupState == "Stable" && len(described.Members) == count {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s has %d members, state %s", group, len(described.Members), described.GroupState)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func goOn(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	if problem := c.write(ctx, topic, 20); problem != nil {
		return problem
	}
	group := c.newName()
	for i := 0; i < 2; i++ {
		member := c.member(group, topic)
		found, problem := read(ctx, member, 10)
		if problem := first(problem, member.Close()); problem != nil {
			return problem
		}
		if found[0].Offset != int64(i*10) {
			return fmt.Errorf("the group begins at %d", found[0].Offset)
		}
	}
	fetched, problem := c.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: {0}}})
	if problem != nil {
		return problem
	}
	return expect(fetched.Topics[topic][0].CommittedOffset == 20, "committed", fetched.Topics)
}

func takeOver(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 2)
	if problem != nil {
		return problem
	}
	group := c.newName()
	one, two := c.member(group, topic), c.member(group, topic)
	defer two.Close()
	if problem := first(c.awaitMembers(ctx, group, 2), one.Close(), c.write(ctx, topic, 40)); problem != nil {
		return problem
	}
	_, problem = read(ctx, two, 40)
	return problem
}

func topics(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 3)
	if problem != nil {
		return problem
	}
	found, problem := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if problem != nil {
		return problem
	}
	problem = first(found.Topics[0].Error, expect(len(found.Topics[0].Partitions) == 3, "partitions", found.Topics))
	deleted, failed := c.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if failed != nil {
		return first(problem, failed)
	}
	for {
		found, failed = c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if failed != nil || errors.Is(found.Topics[0].Error, kafka.UnknownTopicOrPartition) {
			return first(problem, deleted.Errors[topic], failed)
		}
	}
}

func exists(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	again, problem := c.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}}})
	if problem != nil {
		return problem
	}
	return expect(errors.Is(again.Errors[topic], kafka.TopicAlreadyExists), "the error", again.Errors)
}

func partitions(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	more, problem := c.client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 3}}})
	if problem := first(problem, more.Errors[topic]); problem != nil {
		return problem
	}
	for {
		found, problem := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if problem != nil || len(found.Topics[0].Partitions) == 3 {
			return problem
		}
	}
}

func settings(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1, kafka.ConfigEntry{ConfigName: "retention.ms", ConfigValue: "123456"})
	if problem != nil {
		return problem
	}
	changed, problem := c.client.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{
				{Name: "max.message.bytes", Value: "54321", ConfigOperation: kafka.ConfigOperationSet}}}}})
	if problem := first(problem, changed.Resources[0].Error); problem != nil {
		return problem
	}
	for ctx.Err() == nil { // a change is known everywhere in a moment, not at once
		described, problem := c.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
			Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic}}})
		if problem != nil {
			return problem
		}
		values := map[string]string{}
		for _, entry := range described.Resources[0].ConfigEntries {
			values[entry.ConfigName] = entry.ConfigValue
		}
		if values["max.message.bytes"] == "54321" {
			return expect(values["retention.ms"] == "123456", "retention.ms", values["retention.ms"])
		}
	}
	return errors.New("the setting does not change")
}

func offsets(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	if problem := c.write(ctx, topic, 7); problem != nil {
		return problem
	}
	listed, problem := c.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{
		topic: {kafka.FirstOffsetOf(0), kafka.LastOffsetOf(0)}}})
	if problem != nil {
		return problem
	}
	found := listed.Topics[topic][0]
	return expect(found.FirstOffset == 0 && found.LastOffset == 7, "offsets", found)
}

func groups(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 2)
	if problem != nil {
		return problem
	}
	group := c.newName()
	member := c.member(group, topic)
	defer member.Close()
	if problem := c.awaitMembers(ctx, group, 1); problem != nil {
		return problem
	}
	listed, problem := c.client.ListGroups(ctx, &kafka.ListGroupsRequest{})
	if problem != nil {
		return problem
	}
	isListed := false
	for _, one := range listed.Groups {
		isListed = isListed || one.GroupID == group
	}
	described, problem := c.describe(ctx, group)
	if problem != nil {
		return problem
	}
	assigned := described.Members[0].MemberAssignments.Topics
	return first(expect(isListed, "listed", listed.Groups),
		expect(len(assigned) == 1 && len(assigned[0].Partitions) == 2, "assigned", assigned))
}

func deleteGroup(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	group := c.newName()
	committed, problem := c.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: group, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 5}}}})
	if problem := first(problem, committed.Topics[topic][0].Error); problem != nil {
		return problem
	}
	removed, problem := c.client.OffsetDelete(ctx, &kafka.OffsetDeleteRequest{
		GroupID: group, Topics: map[string][]int{topic: {0}}})
	if problem := first(problem, removed.Error, removed.Topics[topic][0].Error); problem != nil {
		return problem
	}
	committed, problem = c.client.OffsetCommit(ctx, &kafka.OffsetCommitRequest{GroupID: group, GenerationID: -1,
		Topics: map[string][]kafka.OffsetCommit{topic: {{Partition: 0, Offset: 5}}}})
	if problem := first(problem, committed.Topics[topic][0].Error); problem != nil {
		return problem
	}
	deleted, problem := c.client.DeleteGroups(ctx, &kafka.DeleteGroupsRequest{GroupIDs: []string{group}})
	return first(problem, deleted.Errors[group])
}

// Offsets that were added to a transaction and not committed are nobody's.
func transactionalOffsets(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	group, id := c.newName(), c.newName()
	producer, problem := c.initProducer(ctx, id)
	if problem != nil {
		return problem
	}
	added, problem := c.client.AddOffsetsToTxn(ctx, &kafka.AddOffsetsToTxnRequest{TransactionalID: id,
		ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, GroupID: group})
	if problem := first(problem, added.Error); problem != nil {
		return problem
	}
	problem = again(ctx, func() error {
		committed, problem := c.client.TxnOffsetCommit(ctx, &kafka.TxnOffsetCommitRequest{TransactionalID: id,
			GroupID: group, ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch, GenerationID: -1,
			Topics: map[string][]kafka.TxnOffsetCommit{topic: {{Partition: 0, Offset: 9}}}})
		if problem != nil {
			return problem
		}
		return committed.Topics[topic][0].Error
	})
	if problem != nil {
		return problem
	}
	if problem := c.end(ctx, id, producer, false); problem != nil {
		return problem
	}
	fetched, problem := c.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{
		GroupID: group, Topics: map[string][]int{topic: {0}}})
	if problem != nil {
		return problem
	}
	return expect(fetched.Topics[topic][0].CommittedOffset == -1, "committed", fetched.Topics)
}

// Asks again while the coordinator is not found or still loads, as Kafka's clients do.
func again(ctx context.Context, ask func() error) error {
	for {
		problem := ask()
		isPassing := errors.Is(problem, kafka.GroupCoordinatorNotAvailable) ||
			errors.Is(problem, kafka.NotCoordinatorForGroup) || errors.Is(problem, kafka.GroupLoadInProgress)
		if !isPassing {
			return problem
		}
		select {
		case <-ctx.Done():
			return problem
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *cluster) initProducer(ctx context.Context, id string) (*kafka.ProducerSession, error) {
	var producer *kafka.ProducerSession
	problem := again(ctx, func() error {
		found, problem := c.client.InitProducerID(ctx, &kafka.InitProducerIDRequest{
			TransactionalID: id, TransactionTimeoutMs: 30000})
		if problem != nil {
			return problem
		}
		producer = found.Producer
		return found.Error
	})
	return producer, problem
}

func (c *cluster) end(ctx context.Context, id string, producer *kafka.ProducerSession, commits bool) error {
	ended, problem := c.client.EndTxn(ctx, &kafka.EndTxnRequest{TransactionalID: id, Committed: commits,
		ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch})
	if problem != nil {
		return problem
	}
	return ended.Error
}

func transaction(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	id := c.newName()
	producer, problem := c.initProducer(ctx, id)
	if problem != nil {
		return problem
	}
	added, problem := c.client.AddPartitionsToTxn(ctx, &kafka.AddPartitionsToTxnRequest{TransactionalID: id,
		ProducerID: producer.ProducerID, ProducerEpoch: producer.ProducerEpoch,
		Topics: map[string][]kafka.AddPartitionToTxn{topic: {{Partition: 0}}}})
	if problem != nil {
		return problem
	}
	return first(added.Topics[topic][0].Error, c.end(ctx, id, producer, true))
}

func connection(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1)
	if problem != nil {
		return problem
	}
	conn, problem := kafka.DialLeader(ctx, "tcp", c.address, topic, 0)
	if problem != nil {
		return problem
	}
	defer conn.Close()
	if problem := conn.SetDeadline(time.Now().Add(patience)); problem != nil {
		return problem
	}
	if _, problem := conn.WriteMessages(numbered(3)...); problem != nil {
		return problem
	}
	start, end, problem := conn.ReadOffsets()
	if problem != nil {
		return problem
	}
	one, failed := conn.ReadMessage(1000)
	brokers, unknown := conn.Brokers()
	return first(failed, unknown, expect(start == 0 && end == 3, "offsets", start, end),
		expect(string(one.Value) == "value-0", "value", one.Value), expect(len(brokers) == 1, "brokers", brokers))
}

func tooLarge(ctx context.Context, c *cluster) error {
	topic, problem := c.newTopic(ctx, 1, kafka.ConfigEntry{ConfigName: "max.message.bytes", ConfigValue: "1000"})
	if problem != nil {
		return problem
	}
	writer := c.writer(topic)
	writer.MaxAttempts = 1
	defer writer.Close()
	problem = writer.WriteMessages(ctx, kafka.Message{Value: make([]byte, 5000)})
	var refused kafka.WriteErrors
	return expect(errors.As(problem, &refused) && errors.Is(refused[0], kafka.MessageSizeTooLarge), "the error", problem)
}
