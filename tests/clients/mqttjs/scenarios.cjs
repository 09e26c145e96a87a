// One scenario of MQTT.js against a broker: node scenarios.cjs SCENARIO PORT VERSION TOPIC; fails by its exit status.
const assert = require("node:assert");
const mqtt = require("mqtt");

const [, , scenario, port, versionText, topic] = process.argv;
const version = Number(versionText); // 3, 4 or 5
const WAIT_MS = 5000;
setTimeout(() => { console.error("time is up"); process.exit(2); }, 20000).unref();

const clients = [];

async function open(settings = {}) {
  const client = await mqtt.connectAsync(`mqtt://127.0.0.1:${port}`, {
    protocolId: version === 3 ? "MQIsdp" : "MQTT",
    protocolVersion: version,
    reconnectPeriod: 0,
    connectTimeout: WAIT_MS,
    ...settings,
  });
  client.waiting = [];
  client.takers = [];
  client.on("message", (name, payload, packet) => {
    const message = { ...packet, topic: name, text: payload.toString() };
    const taker = client.takers.shift();
    if (taker) taker(message); else client.waiting.push(message);
  });
  clients.push(client);
  return client;
}

function next(client) {
  if (client.waiting.length) return Promise.resolve(client.waiting.shift());
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("no message came")), WAIT_MS);
    client.takers.push((message) => { clearTimeout(timer); resolve(message); });
  });
}

const kept = (name) => ({
  clientId: name,
  clean: false,
  ...(version === 5 ? { properties: { sessionExpiryInterval: 300 } } : {}),
});

const scenarios = {
  // messages of every QoS, in order
  async publish() {
    const [receiver, sender] = [await open(), await open()];
    for (const qos of [0, 1, 2]) {
      await receiver.subscribeAsync(`${topic}/${qos}`, { qos });
      for (let number = 0; number < 50; number++) await sender.publishAsync(`${topic}/${qos}`, `${number}`, { qos });
      for (let number = 0; number < 50; number++) {
        const message = await next(receiver);
        assert.deepStrictEqual([message.text, message.qos, message.retain], [`${number}`, qos, false]);
      }
    }
  },
  // stored, delivered with the flag, removed
  async retained() {
    const sender = await open();
    await sender.publishAsync(topic, "kept", { qos: 1, retain: true });
    const receiver = await open();
    await receiver.subscribeAsync(topic, { qos: 1 });
    const message = await next(receiver);
    assert.deepStrictEqual([message.text, message.retain], ["kept", true]);
    await sender.publishAsync(topic, "", { qos: 1, retain: true });
    assert.strictEqual((await next(receiver)).text, "");
    const later = await open();
    await later.subscribeAsync(topic, { qos: 1 });
    await sender.publishAsync(topic, "live", { qos: 1 });
    assert.strictEqual((await next(later)).text, "live");
  },
  // the will of a broken connection
  async will() {
    const watcher = await open();
    await watcher.subscribeAsync(topic, { qos: 1 });
    const dying = await open({ will: { topic, payload: Buffer.from("gone"), qos: 1, retain: false } });
    dying.stream.destroy();
    const message = await next(watcher);
    assert.deepStrictEqual([message.text, message.qos], ["gone", 1]);
  },
  // what came while the client was away
  async session() {
    const name = topic.replaceAll("/", "").slice(-20);
    const first = await open(kept(name));
    await first.subscribeAsync(topic, { qos: 2 });
    await first.endAsync();
    const sender = await open();
    for (let number = 0; number < 10; number++) await sender.publishAsync(topic, `${number}`, { qos: 2 });
    const again = new Promise((resolve) => {
      const client = mqtt.connect(`mqtt://127.0.0.1:${port}`, {
        protocolId: version === 3 ? "MQIsdp" : "MQTT", protocolVersion: version, reconnectPeriod: 0, ...kept(name),
      });
      const texts = [];
      clients.push(client);
      client.on("message", (_, payload) => { texts.push(payload.toString()); if (texts.length === 10) resolve(texts); });
    });
    assert.deepStrictEqual(await again, [..."0123456789"]);
  },
  // properties, aliases, identifiers and options of 5.0
  async properties() {
    const receiver = await open({ properties: { topicAliasMaximum: 10, receiveMaximum: 3 } });
    const sender = await open({ autoUseTopicAlias: true, autoAssignTopicAlias: true });
    await receiver.subscribeAsync(topic, { qos: 1, nl: true, properties: { subscriptionIdentifier: 42 } });
    await receiver.publishAsync(topic, "own", { qos: 1 });
    const sent = {
      payloadFormatIndicator: true,
      contentType: "text/plain",
      responseTopic: "answers",
      correlationData: Buffer.from([0, 1]),
      userProperties: { b: ["2", "3"], a: "1" },
    };
    for (let number = 0; number < 10; number++) await sender.publishAsync(topic, `${number}`, { qos: 1, properties: { ...sent } });
    for (let number = 0; number < 10; number++) {
      const { text, properties, topic: name } = await next(receiver);
      assert.strictEqual(name, topic);
      assert.strictEqual(text, `${number}`);
      assert.strictEqual(properties.subscriptionIdentifier, 42);
      for (const [key, value] of Object.entries(sent)) {
        assert.deepStrictEqual(JSON.parse(JSON.stringify(properties[key])), JSON.parse(JSON.stringify(value)), key);
      }
    }
  },
  // the server's reason reaches the older of two clients of one name
  async takeover() {
    const old = await open({ clientId: "taken" + topic });
    const told = new Promise((resolve) => old.on("disconnect", (packet) => resolve(packet.reasonCode)));
    await open({ clientId: "taken" + topic });
    assert.strictEqual(await told, 0x8e);
  },
};

scenarios[scenario]().then(
  async () => { for (const client of clients) client.end(true); process.exit(0); },
  (failure) => { console.error(failure); process.exit(1); },
);
