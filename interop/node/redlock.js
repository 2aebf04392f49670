// node-redlock with ioredis on the nodes and key of the tests in node_test.go.
//
//   node redlock.js <nodes> <key> try               asks once: "held" or "refused"
//   node redlock.js <nodes> <key> hold              waits for the lock, says "held <value>",
//                                                   releases at the next line of input: "released"
//   node redlock.js <nodes> <key> load <ms> <witness>
//                                                   takes the lock again and again for so long, and
//                                                   up to ten times as long until it has had it five
//                                                   times; says "load <times held> <overlaps>"
//
// Nodes are host:port, separated by commas. The witness is another Redis, on
// which everybody who is inside counts itself.
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import Redis from "ioredis";
import Redlock, { ExecutionError } from "redlock";

const TTL = 10_000;

const [nodes, key, mode, duration, witnessAddress] = process.argv.slice(2);

function connect(address) {
  const [host, port] = address.split(":");
  return new Redis({ host, port: Number(port) });
}

const clients = nodes.split(",").map(connect);
const redlock = new Redlock(clients, { retryCount: -1, retryDelay: 30, retryJitter: 30 });

async function tryOnce() {
  try {
    const lock = await redlock.acquire([key], TTL, { retryCount: 0 });
    await lock.release();
    return "held";
  } catch (error) {
    if (error instanceof ExecutionError) return "refused";
    throw error;
  }
}

async function hold() {
  const lock = await redlock.acquire([key], TTL);
  console.log("held", lock.value);
  await once(process.stdin, "data");
  await lock.release();
  return "released";
}

async function load() {
  const witness = connect(witnessAddress);
  const begun = Date.now();
  let held = 0;
  let overlaps = 0;
  const goOn = () => Date.now() - begun < Number(duration) * (held < 5 ? 10 : 1);
  const caller = async () => {
    while (goOn()) {
      let lock;
      try {
        // Bounded, so that a caller that starves ends too.
        lock = await redlock.acquire([key], TTL, { retryCount: 100 });
      } catch (error) {
        if (error instanceof ExecutionError) continue;
        throw error;
      }
      if ((await witness.incr("inside")) !== 1) overlaps++;
      await sleep(Math.random() * 2);
      await witness.decr("inside");
      await lock.release();
      held++;
      await sleep(Math.random() * 20);
    }
  };
  await Promise.all([caller(), caller()]);
  witness.disconnect();
  return `load ${held} ${overlaps}`;
}

console.log(await { try: tryOnce, hold, load }[mode]());
for (const client of clients) client.disconnect();
process.stdin.destroy();
