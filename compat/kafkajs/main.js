// Scenarios with kafkajs: `node main.js HOST:PORT SCENARIO` plays one and exits with 0, or prints why it failed and
// exits with 1. `node main.js --list` names them.
const assert = require('node:assert/strict')
const { ConfigResourceTypes, CompressionTypes, Kafka, logLevel, Partitioners } = require('kafkajs')

const PATIENCE_MS = 60000
const run = `js-${Date.now()}-${process.pid}`
let names = 0
const newName = () => `${run}-${++names}`

class Cluster {
  constructor(address) {
    this.kafka = new Kafka({ clientId: 'compat', brokers: [address], logLevel: logLevel.NOTHING })
  }

  async admin(use) {
    const admin = this.kafka.admin()
    await admin.connect()
    try {
      return await use(admin)
    } finally {
      await admin.disconnect()
    }
  }

  async producer(settings, use) {
    const producer = this.kafka.producer({ createPartitioner: Partitioners.DefaultPartitioner, ...settings })
    await producer.connect()
    try {
      return await use(producer)
    } finally {
      await producer.disconnect()
    }
  }

  async newTopic(numPartitions = 1, configEntries = []) {
    const topic = newName()
    await this.admin((admin) => admin.createTopics({ waitForLeaders: true, topics: [{ topic, numPartitions, configEntries }] }))
    return topic
  }

  send(topic, messages, more = {}) {
    return this.producer({}, (producer) => producer.send({ topic, messages, acks: -1, ...more }))
  }

  // `count` records of a topic by a member of a group; commits what it has read.
  async read(topic, count, { groupId = newName(), onJoin = () => {}, ...settings } = {}) {
    const consumer = this.kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 1000, rebalanceTimeout: 10000, ...settings })
    const found = []
    await consumer.connect()
    try {
      await consumer.subscribe({ topic, fromBeginning: true })
      consumer.on(consumer.events.GROUP_JOIN, onJoin)
      await new Promise((resolve, reject) => {
        const late = setTimeout(() => reject(new Error(`only ${found.length} of ${count} records came`)), PATIENCE_MS)
        consumer
          .run({
            eachMessage: async ({ partition, message }) => {
              found.push({ partition, ...message })
              if (found.length >= count) {
                clearTimeout(late)
                resolve()
              }
            },
          })
          .catch(reject)
      })
    } finally {
      await consumer.disconnect()
    }
    return found
  }
}

const numbered = (count) => Array.from({ length: count }, (_, i) => ({ key: `key-${i}`, value: `value-${i}` }))
const until = async (holds) => {
  const deadline = Date.now() + PATIENCE_MS
  while (!(await holds())) {
    assert.ok(Date.now() < deadline, 'not in time')
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}

const keep = (compression) => async (cluster) => {
  const topic = await cluster.newTopic()
  const timestamp = String(Date.now() - 5000)
  await cluster.send(
    topic,
    [
      { key: 'key', value: 'value '.repeat(1000), headers: { one: '1', two: ['a', 'b'] }, timestamp },
      { key: null, value: 'no key', timestamp },
      { key: 'no value', value: null, timestamp },
    ],
    { compression }
  )
  const found = await cluster.read(topic, 3)
  assert.deepEqual(found.map((one) => one.offset), ['0', '1', '2'])
  assert.deepEqual(found.map((one) => one.timestamp), [timestamp, timestamp, timestamp])
  assert.equal(found[0].value.toString(), 'value '.repeat(1000))
  assert.equal(found[0].headers.one.toString(), '1')
  assert.deepEqual(found[0].headers.two.map(String), ['a', 'b'])
  assert.equal(found[1].key, null)
  assert.equal(found[2].value, null)
}

const acks = (required) => async (cluster) => {
  const topic = await cluster.newTopic()
  await cluster.send(topic, numbered(50), { acks: required })
  assert.equal((await cluster.read(topic, 50)).length, 50)
}

const scenarios = {
  records_keep_everything_with_none: keep(CompressionTypes.None),
  records_keep_everything_with_gzip: keep(CompressionTypes.GZIP),
  acks_none: acks(0),
  acks_one: acks(1),
  acks_all: acks(-1),

  async keys_choose_partitions(cluster) {
    const topic = await cluster.newTopic(4)
    await cluster.send(topic, [...numbered(40), ...numbered(40)])
    const places = new Map()
    for (const { key, partition } of await cluster.read(topic, 80)) {
      assert.equal(places.get(key.toString()) ?? partition, partition)
      places.set(key.toString(), partition)
    }
    assert.ok(new Set(places.values()).size > 1)
  },

  async a_topic_is_made_by_its_first_record(cluster) {
    const topic = newName()
    await cluster.producer({ allowAutoTopicCreation: true }, (producer) => producer.send({ topic, messages: numbered(1) }))
    assert.equal((await cluster.read(topic, 1)).length, 1)
  },

  async an_idempotent_producer_writes_once(cluster) {
    const topic = await cluster.newTopic(2)
    await cluster.producer({ idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (let i = 0; i < 10; i++) await producer.send({ topic, messages: numbered(10) })
    })
    const offsets = await cluster.admin((admin) => admin.fetchTopicOffsets(topic))
    assert.equal(offsets.reduce((sum, one) => sum + Number(one.offset), 0), 100)
  },

  async several_topics_in_one_request(cluster) {
    const topics = [await cluster.newTopic(), await cluster.newTopic()]
    await cluster.producer({}, (producer) =>
      producer.sendBatch({ topicMessages: topics.map((topic) => ({ topic, messages: numbered(5) })) })
    )
    for (const topic of topics) assert.equal((await cluster.read(topic, 5)).length, 5)
  },

  async transactions_are_whole_or_nothing(cluster) {
    const topic = await cluster.newTopic()
    await cluster.producer({ transactionalId: newName(), idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (let i = 0; i < 6; i++) {
        const transaction = await producer.transaction()
        await transaction.send({ topic, messages: [{ value: `record ${i}` }] })
        await (i % 3 === 0 ? transaction.abort() : transaction.commit())
      }
    })
    const found = await cluster.read(topic, 4, { readUncommitted: false })
    assert.deepEqual(found.map((one) => one.value.toString()), ['record 1', 'record 2', 'record 4', 'record 5'])
  },

  async offsets_move_with_their_transaction(cluster) {
    const topic = await cluster.newTopic()
    const consumerGroupId = newName()
    await cluster.producer({ transactionalId: newName(), idempotent: true, maxInFlightRequests: 1 }, async (producer) => {
      for (const [offset, commits] of [['5', true], ['9', false]]) {
        const transaction = await producer.transaction()
        await transaction.send({ topic, messages: numbered(1) })
        await transaction.sendOffsets({ consumerGroupId, topics: [{ topic, partitions: [{ partition: 0, offset }] }] })
        await (commits ? transaction.commit() : transaction.abort())
      }
    })
    const [fetched] = await cluster.admin((admin) => admin.fetchOffsets({ groupId: consumerGroupId, topics: [topic] }))
    assert.equal(fetched.partitions[0].offset, '5')
  },

  async a_group_goes_on_where_it_was(cluster) {
    const topic = await cluster.newTopic()
    const groupId = newName()
    await cluster.send(topic, numbered(10))
    await cluster.read(topic, 10, { groupId })
    await cluster.send(topic, [{ value: 'later' }])
    const found = await cluster.read(topic, 1, { groupId })
    assert.equal(found[0].value.toString(), 'later')
  },

  async a_group_shares_partitions(cluster) {
    const topic = await cluster.newTopic(4)
    const groupId = newName()
    const assigned = {}
    const seen = new Set()
    const members = ['one', 'two'].map(() => cluster.kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 500 }))
    try {
      for (const [i, member] of members.entries()) {
        member.on(member.events.GROUP_JOIN, ({ payload }) => (assigned[i] = payload.memberAssignment[topic] ?? []))
        await member.connect()
        await member.subscribe({ topic, fromBeginning: true })
        await member.run({ eachMessage: async ({ message }) => seen.add(message.value.toString()) })
      }
      await until(() => assigned[0]?.length === 2 && assigned[1]?.length === 2)
      await cluster.send(topic, numbered(200))
      await until(() => seen.size === 200)
      await members[0].disconnect()
      await until(() => assigned[1].length === 4)
    } finally {
      for (const member of members) await member.disconnect()
    }
  },

  async seek_and_pause(cluster) {
    const topic = await cluster.newTopic()
    await cluster.send(topic, numbered(20))
    const consumer = cluster.kafka.consumer({ groupId: newName() })
    const offsets = []
    await consumer.connect()
    try {
      await consumer.subscribe({ topic })
      await consumer.run({ autoCommit: false, eachMessage: async ({ message }) => offsets.push(message.offset) })
      consumer.seek({ topic, partition: 0, offset: '15' })
      await until(() => offsets.includes('19'))
      assert.ok(!offsets.includes('14'))
      consumer.pause([{ topic }])
      await cluster.send(topic, [{ value: 'paused' }])
      consumer.resume([{ topic }])
      await until(() => offsets.includes('20'))
    } finally {
      await consumer.disconnect()
    }
  },

  async a_topic_is_made_described_and_deleted(cluster) {
    const topic = await cluster.newTopic(3)
    await cluster.admin(async (admin) => {
      const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
      assert.equal(topics[0].partitions.length, 3)
      await admin.deleteTopics({ topics: [topic] })
      await until(async () => !(await admin.listTopics()).includes(topic))
    })
  },

  async a_topic_that_exists_is_refused(cluster) {
    const topic = await cluster.newTopic()
    assert.equal(await cluster.admin((admin) => admin.createTopics({ topics: [{ topic }] })), false)
  },

  async partitions_are_added(cluster) {
    const topic = await cluster.newTopic()
    await cluster.admin(async (admin) => {
      await admin.createPartitions({ topicPartitions: [{ topic, count: 3 }] })
      await until(async () => (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length === 3)
    })
  },

  async settings_are_described_and_changed(cluster) {
    const topic = await cluster.newTopic(1, [{ name: 'retention.ms', value: '123456' }])
    const resource = { type: ConfigResourceTypes.TOPIC, name: topic }
    await cluster.admin(async (admin) => {
      await admin.alterConfigs({ resources: [{ ...resource, configEntries: [{ name: 'max.message.bytes', value: '54321' }] }] })
      const { resources } = await admin.describeConfigs({ resources: [resource] })
      const values = Object.fromEntries(resources[0].configEntries.map((one) => [one.configName, one.configValue]))
      assert.equal(values['max.message.bytes'], '54321')
      assert.notEqual(values['retention.ms'], '123456') // AlterConfigs sets what it names and forgets the rest
    })
  },

  async offsets_are_listed_by_time_and_records_deleted(cluster) {
    const topic = await cluster.newTopic()
    const now = Date.now()
    await cluster.send(topic, Array.from({ length: 10 }, (_, i) => ({ value: `${i}`, timestamp: String(now - 10000 + i * 1000) })))
    await cluster.admin(async (admin) => {
      const [at] = await admin.fetchTopicOffsetsByTimestamp(topic, now - 5000)
      assert.equal(at.offset, '5')
      await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '4' }] })
      const [{ low, high }] = await admin.fetchTopicOffsets(topic)
      assert.deepEqual([low, high], ['4', '10'])
    })
  },

  async groups_are_listed_described_and_deleted(cluster) {
    const topic = await cluster.newTopic()
    const groupId = newName()
    await cluster.send(topic, numbered(3))
    await cluster.read(topic, 3, { groupId })
    await cluster.admin(async (admin) => {
      assert.ok((await admin.listGroups()).groups.some((one) => one.groupId === groupId))
      const { groups } = await admin.describeGroups([groupId])
      assert.equal(groups[0].state, 'Empty')
      await admin.setOffsets({ groupId, topic, partitions: [{ partition: 0, offset: '1' }] })
      const [fetched] = await admin.fetchOffsets({ groupId, topics: [topic] })
      assert.equal(fetched.partitions[0].offset, '1')
      await admin.deleteGroups([groupId])
      assert.ok(!(await admin.listGroups()).groups.some((one) => one.groupId === groupId))
    })
  },

  async the_cluster_is_described(cluster) {
    const found = await cluster.admin((admin) => admin.describeCluster())
    assert.equal(found.brokers.length, 1)
    assert.equal(found.controller, found.brokers[0].nodeId)
  },

  async there_are_no_rules(cluster) {
    const filter = { resourceType: 1, resourcePatternType: 1, operation: 1, permissionType: 1 }
    await assert.rejects(cluster.admin((admin) => admin.describeAcls(filter)), { type: 'SECURITY_DISABLED' })
  },

  async too_large_is_refused(cluster) {
    const topic = await cluster.newTopic(1, [{ name: 'max.message.bytes', value: '1000' }])
    await assert.rejects(cluster.send(topic, [{ value: 'x'.repeat(5000) }]), { type: 'MESSAGE_TOO_LARGE' })
  },
}

const main = async ([address, name]) => {
  if (address === '--list') {
    Object.keys(scenarios).sort().forEach((one) => console.log(one))
    return
  }
  assert.ok(name in scenarios, `no such scenario: ${name}`)
  await scenarios[name](new Cluster(address))
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (problem) => {
    console.log(problem.stack)
    process.exit(1)
  }
)
