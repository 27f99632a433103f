// node-redlock as its readme sets it up, told by a test what to do: one command per line, one answer per line.
//
// Libraries are looked for in the folder that PEERS names, where `cargo xtask test --install` puts them.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join } from "node:path";

const require = createRequire(join(process.env.PEERS, "index.js"));
const Redis = require("ioredis");
const module = require("redlock");
const Redlock = module.default ?? module;

const clients = process.argv.slice(2).map((url) => new Redis(url));
const redlock = new Redlock(clients, { retryCount: 0 });
redlock.on("error", () => {});
await Promise.all(clients.map((client) => client.ping()));
console.log("ready");

let lock;
for await (const line of createInterface({ input: process.stdin })) {
  const [verb, ...words] = line.split(" ");
  try {
    if (verb === "acquire") {
      lock = await redlock.acquire([words[0]], Number(words[1]));
      console.log("granted");
    } else {
      await lock.release();
      console.log("released");
    }
  } catch (error) {
    console.log("refused");
  }
}
process.exit(0);
