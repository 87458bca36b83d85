// Graphile Worker. BENCH_SETTING=fastest: a local queue and batched completion; anything else: the library's own way of
// one statement to fetch and one to complete a job.
import { setTimeout as pause } from "node:timers/promises";

import { due, HANDLER_MS, ROW, SLOTS, URL_OF_SERVER, installed, main } from "./program.mjs";

const { Logger, WorkerPreset, makeWorkerUtils, run, runMigrations } = await installed("graphile-worker");
const { Pool } = (await installed("pg")).default;

const FASTEST = process.env.BENCH_SETTING === "fastest";
const WARMING = 2000;
const BATCH = 1000;
const quiet = new Logger(() => () => {}); // otherwise a line a job

const concurrent = HANDLER_MS > 0 ? SLOTS : FASTEST ? 24 : 10;
const settings = {
  concurrentJobs: concurrent,
  // Its advice is 10 or concurrentJobs + 2. Debian's server has 100 connections for both processes, and in the row of the
  // kill for all peers together.
  maxPoolSize: ROW === "kill" ? 10 : Math.min(Math.max(10, concurrent + 2), 40),
  ...(FASTEST ? { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } : {}),
};

const options = (pgPool, schema) => ({
  preset: { extends: [WorkerPreset], worker: { ...settings, schema } },
  pgPool,
  logger: quiet,
});
const running = (pgPool, schema, bench) =>
  run({ ...options(pgPool, schema), taskList: { bench }, parsedCronItems: [], noHandleSignals: true });

const complain = (error) => process.stderr.write(`${error.stack}\n`);

async function pool(connections) {
  const made = new Pool({ connectionString: URL_OF_SERVER, max: connections });
  made.on("error", complain);
  made.on("connect", (client) => client.on("error", complain));
  const clients = await Promise.all(Array.from({ length: connections }, () => made.connect()));
  for (const client of clients) client.release();
  return made;
}

async function addAll(utils, payloads) {
  const runAt = due();
  for (let at = 0; at < payloads.length; at += BATCH) {
    await utils.addJobs(payloads.slice(at, at + BATCH).map((body) => ({ identifier: "bench", payload: body, runAt })));
  }
}

// Node compiles what runs often: a few jobs in a schema of their own, so that the measured tables stay untouched. It is
// left behind: the runner's `stop` does not wait for the last completions, and the database is thrown away after a run.
async function warm(pgPool) {
  const schema = `warm_${process.pid}`;
  const lock = await pgPool.connect();
  await lock.query("select pg_advisory_lock(16)"); // schemas of two processes, made at once, can end in a deadlock
  const utils = await makeWorkerUtils(options(pgPool, schema));
  await utils.migrate();
  await addAll(utils, Array.from({ length: WARMING }, (_, n) => ({ n })));
  const runner = await running(pgPool, schema, () => {});
  const left = async () => (await lock.query(`select count(*)::int as left from ${schema}.jobs`)).rows[0].left;
  while ((await left()) > 0) await pause(20);
  await runner.stop();
  await lock.query("select pg_advisory_unlock(16)");
  lock.release();
}

await main({
  prepare: () => runMigrations({ connectionString: URL_OF_SERVER, logger: quiet }),

  async fill(payloads) {
    const utils = await makeWorkerUtils({ connectionString: URL_OF_SERVER, logger: quiet });
    await addAll(utils, payloads);
  },

  async publisher(connections) {
    const utils = await makeWorkerUtils({ pgPool: await pool(connections), logger: quiet });
    return (body) => utils.addJob("bench", body);
  },

  async caller(connections) {
    const clients = await pool(connections);
    return async (body) => {
      const client = await clients.connect();
      await client.query("begin");
      await client.query("insert into bench_order (n) values ($1)", [body.n]);
      await client.query("select graphile_worker.add_job('bench', $1)", [JSON.stringify(body)]);
      await client.query("commit");
      client.release();
    };
  },

  async work(handle) {
    const pgPool = await pool(settings.maxPoolSize);
    await warm(pgPool);
    return async () => {
      const runner = await running(pgPool, "graphile_worker", handle);
      return () => runner.stop();
    };
  },
});
