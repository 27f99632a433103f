// node-redlock, for the load comparison. The lines it reads and writes are described in src/load/peer.rs.
//
// Libraries are looked for where `cargo xtask bench --install-peers` puts them: in the folder that PEERS names.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const require = createRequire(join(process.env.PEERS ?? ".", "node", "index.js"));
let Redis, Redlock, version;
try {
  Redis = require("ioredis");
  const module = require("redlock");
  Redlock = module.default ?? module;
  // Its package.json is not exported.
  const lock = JSON.parse(readFileSync(join(process.env.PEERS ?? ".", "node", "node_modules", ".package-lock.json"), "utf8"));
  version = lock.packages["node_modules/redlock"].version;
} catch (error) {
  console.log(`absent the libraries are not installed (${error.code}); run cargo xtask bench --install-peers`);
  process.exit(0);
}

const clients = process.argv[2].split(",").map((url) => {
  const client = new Redis(url);
  client.on("error", () => {}); // a server that is down is part of the comparison
  return client;
});
const redlock = new Redlock(clients);
redlock.on("error", () => {});

const now = () => process.hrtime.bigint();
const pause = (millis) => new Promise((resolve) => setTimeout(resolve, millis));
const NANOS = 1_000_000n;

async function alone(resource, ttl, leadIn, rounds, limit) {
  const end = now() + BigInt(limit) * NANOS;
  const times = [];
  for (let round = 0; round < leadIn + rounds; round++) {
    const started = now();
    if (0 < round && end < started) break;
    let time = "x";
    try {
      const lock = await redlock.acquire([resource], ttl);
      await lock.release();
      time = String(now() - started);
    } catch {}
    if (leadIn <= round || end < now()) times.push(time);
  }
  console.log(`times ${times.join(" ")}`);
}

async function many(resource, ttl, tasks, millis) {
  const end = now() + BigInt(millis) * NANOS;
  let done = 0, failed = 0;
  await Promise.all(Array.from({ length: tasks }, async (_, task) => {
    while (now() < end) {
      try {
        const lock = await redlock.acquire([`${resource}/${task}`], ttl);
        await lock.release();
        done++;
      } catch {
        failed++;
      }
    }
  }));
  console.log(`rounds ${done} ${failed}`);
}

async function crowd(resource, ttl, firstTask, tasks, holdUs, grants, start, end) {
  const lines = [];
  let failed = 0;
  await pause(Number((BigInt(start) - now()) / NANOS));
  await Promise.all(Array.from({ length: tasks }, async (_, index) => {
    for (let had = 0; had < grants; had++) {
      const asked = now();
      let lock;
      while (lock === undefined) {
        if (BigInt(end) <= now()) {
          failed += grants - had;
          return;
        }
        try {
          lock = await redlock.acquire([resource], ttl);
        } catch {} // ten tries; again
      }
      const granted = now();
      await pause(holdUs / 1000);
      const released = now();
      await lock.release().catch(() => {});
      lines.push(`grant ${firstTask + index} ${asked} ${granted} ${released}`);
    }
  }));
  lines.push(`done ${failed}`);
  console.log(lines.join("\n"));
}

await Promise.allSettled(clients.map((client) => client.ping()));
console.log(`ready ${version}`);
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, resource, ...numbers] = line.split(" ");
  const exact = verb === "crowd" ? numbers.map((word, place) => (place < 5 ? Number(word) : word)) : numbers.map(Number);
  await { alone, many, crowd }[verb](resource, ...exact);
}
process.exit(0);
