// Scenarios of MQTT.js against a broker, for Node.js and for a page in a browser: nothing here is of one of them.
const WAIT_MS = 5000;
const LARGE_BYTES = 300000;

function equal(found, expected, what = "") {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  if (one !== other) throw new Error(`${what} is ${one}, not ${other}`);
}

// Runs a scenario. `version`: 3 (MQTT 3.1), 4 (3.1.1), 5. Whatever goes wrong is an Error.
async function runScenario(mqtt, scenario, url, version, topic) {
  const clients = [];

  async function open(settings = {}) {
    const client = mqtt.connect(url, {
      protocolId: version === 3 ? "MQIsdp" : "MQTT",
      protocolVersion: version,
      reconnectPeriod: 0,
      connectTimeout: WAIT_MS,
      ...settings,
    });
    clients.push(client);
    client.waiting = [];
    client.takers = [];
    client.on("message", (name, payload, packet) => {
      const message = { ...packet, topic: name, text: payload.toString() };
      const taker = client.takers.shift();
      if (taker) taker(message); else client.waiting.push(message);
    });
    await new Promise((resolve, reject) => {
      client.on("connect", resolve);
      client.on("error", reject);
      client.on("close", () => reject(new Error("not connected")));
    });
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
    // in and out again
    async connect() {
      await open();
    },
    // messages of every QoS, in order
    async publish() {
      const [receiver, sender] = [await open(), await open()];
      for (const qos of [0, 1, 2]) {
        await receiver.subscribeAsync(`${topic}/${qos}`, { qos });
        for (let number = 0; number < 50; number++) await sender.publishAsync(`${topic}/${qos}`, `${number}`, { qos });
        for (let number = 0; number < 50; number++) {
          const message = await next(receiver);
          equal([message.text, message.qos, message.retain], [`${number}`, qos, false]);
        }
      }
    },
    // more than the buffers of a socket hold, byte by byte
    async large() {
      const [receiver, sender] = [await open(), await open()];
      await receiver.subscribeAsync(topic, { qos: 2 });
      for (const qos of [0, 1, 2]) {
        const sent = Uint8Array.from({ length: LARGE_BYTES }, (_, at) => (at * at + qos) % 251);
        sender.publish(topic, sent, { qos });
        const { payload } = await next(receiver);
        equal(payload.length, LARGE_BYTES, "the length");
        equal(sent.findIndex((byte, at) => byte !== payload[at]), -1, "the first wrong byte");
      }
    },
    // stored, delivered with the flag, removed
    async retained() {
      const sender = await open();
      await sender.publishAsync(topic, "kept", { qos: 1, retain: true });
      const receiver = await open();
      await receiver.subscribeAsync(topic, { qos: 1 });
      const message = await next(receiver);
      equal([message.text, message.retain], ["kept", true]);
      await sender.publishAsync(topic, "", { qos: 1, retain: true });
      equal((await next(receiver)).text, "");
      const later = await open();
      await later.subscribeAsync(topic, { qos: 1 });
      await sender.publishAsync(topic, "live", { qos: 1 });
      equal((await next(later)).text, "live");
    },
    // the will of a broken connection
    async will() {
      const watcher = await open();
      await watcher.subscribeAsync(topic, { qos: 1 });
      const dying = await open({ will: { topic, payload: "gone", qos: 1, retain: false } });
      dying.stream.destroy();
      const message = await next(watcher);
      equal([message.text, message.qos], ["gone", 1]);
    },
    // what came while the client was away
    async session() {
      const name = topic.replaceAll("/", "").slice(-20);
      const first = await open(kept(name));
      await first.subscribeAsync(topic, { qos: 2 });
      await first.endAsync();
      const sender = await open();
      for (let number = 0; number < 10; number++) await sender.publishAsync(topic, `${number}`, { qos: 2 });
      const again = await open(kept(name));
      for (let number = 0; number < 10; number++) equal((await next(again)).text, `${number}`);
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
        userProperties: { b: ["2", "3"], a: "1" },
      };
      const correlationData = Uint8Array.of(0, 1);
      for (let number = 0; number < 10; number++) {
        await sender.publishAsync(topic, `${number}`, { qos: 1, properties: { ...sent, correlationData } });
      }
      for (let number = 0; number < 10; number++) {
        const { text, properties, topic: name } = await next(receiver);
        equal([name, text, properties.subscriptionIdentifier], [topic, `${number}`, 42]);
        equal([...properties.correlationData], [...correlationData], "correlationData");
        for (const [key, value] of Object.entries(sent)) equal(properties[key], value, key);
      }
    },
    // the server's reason reaches the older of two clients of one name
    async takeover() {
      const old = await open({ clientId: "taken" + topic });
      const told = new Promise((resolve) => old.on("disconnect", (packet) => resolve(packet.reasonCode)));
      await open({ clientId: "taken" + topic });
      equal(await told, 0x8e);
    },
    // connected, with a will, until the page is closed
    async stay() {
      await open({ will: { topic, payload: "closed", qos: 1, retain: false } });
      clients.length = 0;
    },
  };

  try {
    await scenarios[scenario]();
  } finally {
    for (const client of clients) client.end(true);
  }
}

if (typeof module !== "undefined") module.exports = { runScenario };
