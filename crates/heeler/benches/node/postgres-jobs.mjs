// The newest 20 jobs of a fleet's own table, through node-postgres on a unix socket. Prints the median
// seconds per call.
import pg from "pg";
const [, , host, rounds] = process.argv;
const client = new pg.Client({ host, user: "heeler", database: "fleet" });
await client.connect();
const query = {
  name: "newest",
  text: `SELECT id, trigger_type, agent, started_at, finished_at, status, duration_ms, cost_usd
    FROM executions WHERE step IS NULL ORDER BY started_at DESC, id DESC LIMIT 20`,
};
const times = [];
for (let i = 0; i < Number(rounds); i++) {
  const start = process.hrtime.bigint();
  const { rows } = await client.query(query);
  if (rows.length !== 20) throw new Error("too few rows");
  times.push(Number(process.hrtime.bigint() - start) / 1e9);
}
await client.end();
times.sort((a, b) => a - b);
console.log(times[times.length >> 1]);
