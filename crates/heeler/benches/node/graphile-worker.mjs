// Jobs that wait in graphile-worker's queue, and are claimed and done by a worker whose task does nothing.
// Prints jobs per second.
import { makeWorkerUtils, run, Logger } from "graphile-worker";
const [, , host, count] = process.argv;
const connectionString = `postgres://heeler@/jobs?host=${encodeURIComponent(host)}`;
const logger = new Logger(() => () => {});
const utils = await makeWorkerUtils({ connectionString, logger });
await utils.migrate();
await utils.withPgClient((client) =>
  client.query("SELECT graphile_worker.add_job('start', json_build_object('run', n)) FROM generate_series(1, $1::int) n", [count]));
await utils.release();
let done = 0;
let finish;
const all = new Promise((resolve) => (finish = resolve));
const begun = process.hrtime.bigint();
const start = async () => {
  if (++done === Number(count)) finish();
};
const runner = await run({ connectionString, logger, concurrency: 10, noHandleSignals: true, taskList: { start } });
await all;
console.log(Number(count) / (Number(process.hrtime.bigint() - begun) / 1e9));
await runner.stop();
