// pg-boss: batches of 1,000, fetched one after the other while they come back full, LISTEN/NOTIFY for single jobs.
import { due, HANDLER_MS, ROW, SLOTS, URL_OF_SERVER, installed, main } from "./program.mjs";

const { PgBoss } = await installed("pg-boss");
const { Pool } = (await installed("pg")).default;

const QUEUE = "bench";
const BATCH = Number(process.env.BENCH_BATCH ?? 1000);
const WARMING = 2000;
const KILL = ROW === "kill";

// In the row of the kill: the shortest heartbeat it allows, looked at every second.
// (expireInSeconds 1 would be shorter, and would also fail every job that takes longer than a second.)
const queue = { notify: true, ...(KILL ? { heartbeatSeconds: 10 } : {}) };
const watching = KILL ? { superviseIntervalSeconds: 1, monitorIntervalSeconds: 1 } : {};

async function boss(options) {
  const made = new PgBoss({ connectionString: URL_OF_SERVER, schedule: false, ...options });
  made.on("error", (error) => process.stderr.write(`${error.stack}\n`));
  await made.start();
  return made;
}

const publisher = (connections) => boss({ max: connections, supervise: false, migrate: false });

async function insertAll(to, name, payloads) {
  const startAfter = due();
  for (let at = 0; at < payloads.length; at += 1000) {
    await to.insert(name, payloads.slice(at, at + 1000).map((data) => ({ data, startAfter })));
  }
}

// Rounds of up to BATCH at once: with handlers that wait, four rounds share the slots, so that some can be fetched or
// completed while the others run.
const rounds =
  HANDLER_MS > 0
    ? { batchSize: Math.max(1, Math.floor(SLOTS / 4)), localConcurrency: 4 }
    : { batchSize: BATCH, localConcurrency: Number(process.env.BENCH_CONCURRENCY ?? 1) };
const working = { ...rounds, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 };

// Node compiles what runs often: a few jobs in a queue of their own (pg-boss keeps finished jobs; these go with it).
async function warm(made) {
  const name = `warm_${process.pid}`;
  await made.createQueue(name, queue);
  await insertAll(made, name, Array.from({ length: WARMING }, (_, n) => ({ n })));
  let left = WARMING;
  await new Promise((resolve, reject) => {
    const handler = async (jobs) => {
      left -= jobs.length;
      if (left === 0) resolve();
    };
    made.work(name, working, handler).catch(reject);
  });
  await made.offWork(name, { wait: true });
  await made.deleteQueue(name);
}

await main({
  async prepare() {
    const made = await boss({});
    await made.createQueue(QUEUE, queue);
    await made.stop();
  },

  async fill(payloads) {
    await insertAll(await publisher(1), QUEUE, payloads);
  },

  async publisher(connections) {
    const made = await publisher(connections);
    return (body) => made.send(QUEUE, body);
  },

  async caller(connections) {
    const made = await publisher(1);
    const clients = new Pool({ connectionString: URL_OF_SERVER, max: connections });
    return async (body) => {
      const client = await clients.connect();
      await client.query("begin");
      await client.query("insert into bench_order (n) values ($1)", [body.n]);
      await made.send(QUEUE, body, { db: { executeSql: (text, values) => client.query(text, values) } });
      await client.query("commit");
      client.release();
    };
  },

  async work(handle) {
    const made = await boss({ useListenNotify: true, migrate: false, ...watching });
    await warm(made);
    return async () => {
      await made.work(QUEUE, working, (jobs) => Promise.all(jobs.map((job) => handle(job.data))));
      return () => made.stop({ graceful: true, timeout: 5000 });
    };
  },
});
