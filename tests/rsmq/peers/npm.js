// The real npm rsmq, driven by one JSON request a line: [verb, options] or ["loop", options].
const RedisSMQ = require("rsmq");
const [, , host, port, ns, realtime] = process.argv;
const rsmq = new RedisSMQ({ host, port: Number(port), ns, realtime: realtime === "1" });

async function loop(options) {
  // Pops until told to stop by a line on standard input; every id goes out as a line.
  const stop = { said: false };
  stops.push(stop);
  while (!stop.said) {
    const message = await rsmq.popMessageAsync(options);
    if (message.id) say({ popped: message });
    else await new Promise((done) => setTimeout(done, 5));
  }
  return "stopped";
}

const stops = [];
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", async (line) => {
    const [verb, options] = JSON.parse(line);
    if (verb === "stop") return stops.forEach((stop) => (stop.said = true));
    try {
      const answer =
        verb === "loop" ? await loop(options)
        : verb === "listQueues" ? await rsmq.listQueuesAsync()
        : await rsmq[verb + "Async"](options);
      say({ result: answer });
    } catch (error) {
      say({ error: { name: error.name, message: error.message } });
    }
  })
  .on("close", () => process.exit(0));
