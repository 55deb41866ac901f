// A server of the newest 20 executions: fastify over better-sqlite3, with the documented list query of
// Last Light, or those before a moment. The table is made by sqlite-jobs.mjs. Prints its port, and serves
// until it is killed.
import Database from "better-sqlite3";
import Fastify from "fastify";
const [, , path] = process.argv;
const db = new Database(path, { readonly: true });
const query = db.prepare(
  "SELECT id, trigger_type, skill, started_at, finished_at, success, duration_ms, cost_usd FROM executions ORDER BY started_at DESC LIMIT 20");
const older = db.prepare(
  "SELECT id, trigger_type, skill, started_at, finished_at, success, duration_ms, cost_usd FROM executions WHERE started_at < ? ORDER BY started_at DESC LIMIT 20");
const app = Fastify();
app.get("/jobs", async ({ query: { before } }) => ({ jobs: before ? older.all(before) : query.all() }));
await app.listen({ host: "127.0.0.1", port: 0 });
console.log(app.server.address().port);
