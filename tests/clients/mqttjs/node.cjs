// One scenario on Node.js: node node.cjs SCENARIO URL VERSION TOPIC; fails by its exit status.
const mqtt = require("mqtt");
const { runScenario } = require("./scenarios.js");

const [, , scenario, url, version, topic] = process.argv;
setTimeout(() => { console.error("time is up"); process.exit(2); }, 20000).unref();
runScenario(mqtt, scenario, url, Number(version), topic).then(
  () => process.exit(0),
  (failure) => { console.error(failure); process.exit(1); },
);
