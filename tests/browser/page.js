// Runs the scenario that the page's address names, and tells the page's server how it went: "" for well.
const asked = new URLSearchParams(location.search);
const [scenario, url, topic] = ["scenario", "url", "topic"].map((name) => asked.get(name));

runScenario(mqtt, scenario, url, Number(asked.get("version")), topic).then(
  () => "",
  (failure) => String(failure.stack ?? failure),
).then((body) => fetch(`/reports/${asked.get("number")}`, { method: "POST", body }));
