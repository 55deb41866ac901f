// A minimal polling scheduler, written as a user would write it for Node.js and kinder to itself than
// herdctl, whose loop it has: once a second it looks at every schedule; jobs run side by side, and the
// state file is written once a round, not once a schedule. Each job has a file. It keeps no transcript,
// syncs nothing and settles nothing but a status.
//
//   node scheduler.mjs CONFIG STATE SOCKET
//
// Prints `ready`. POST /AGENT on the socket starts a job. When it is told to end, it writes how many
// milliseconds after each due time the job was in its files to STATE/delays.json.
import { spawn } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { parse } from "yaml";

const [config, folder, socket] = process.argv.slice(2);
const ROUND_MS = 1000;
const UNITS = { s: 1000, m: 60_000, h: 3_600_000 };

/** The next time of a cron expression of plain numbers and stars. */
function nextOfCron(text, after) {
  const [minute, hour, day, month] = text.split(" ").map((field) => (field === "*" ? null : Number(field)));
  const at = new Date(after);
  at.setSeconds(0, 0);
  at.setMinutes(at.getMinutes() + 1);
  for (;;) {
    if (month !== null && at.getMonth() + 1 !== month) at.setMonth(at.getMonth() + 1, 1), at.setHours(0, 0);
    else if (day !== null && at.getDate() !== day) at.setDate(at.getDate() + 1), at.setHours(0, 0);
    else if (hour !== null && at.getHours() !== hour) at.setHours(at.getHours() + 1, 0);
    else if (minute !== null && at.getMinutes() !== minute) at.setMinutes(at.getMinutes() + 1);
    else return at.getTime();
  }
}

function replace(path, value) {
  writeFileSync(`${path}.new`, JSON.stringify(value));
  renameSync(`${path}.new`, path);
}

function readState() {
  try {
    return JSON.parse(readFileSync(`${folder}/state.json`, "utf8"));
  } catch {
    return {};
  }
}

mkdirSync(`${folder}/jobs`, { recursive: true });
const { agents: listed } = parse(readFileSync(config, "utf8"));
const agents = new Map((listed ?? []).map((agent) => [agent.name, agent]));
const state = readState();
const schedules = [];
for (const agent of agents.values()) {
  for (const [name, { interval, cron }] of Object.entries(agent.schedules ?? {})) {
    const key = `${agent.name}/${name}`;
    const every = interval && Number(interval.slice(0, -1)) * UNITS[interval.at(-1)];
    const last = state[key]?.last_run_at;
    const due = every ? (last === undefined ? Date.now() : last + every) : nextOfCron(cron, Date.now());
    schedules.push({ key, agent, every, cron, due, busy: false });
  }
}

// Whatever an earlier process left is running or interrupted.
for (const name of readdirSync(`${folder}/jobs`)) {
  const job = JSON.parse(readFileSync(`${folder}/jobs/${name}`, "utf8"));
  if (job.status !== "running") continue;
  try {
    process.kill(job.pid, 0);
  } catch {
    replace(`${folder}/jobs/${name}`, { ...job, status: "interrupted", finished_at: Date.now() });
  }
}

let count = 0;
function begin(agent, schedule) {
  const id = `job-${Date.now()}-${count++}`;
  const job = { id, agent: agent.name, schedule, status: "pending", started_at: Date.now() };
  replace(`${folder}/jobs/${id}.json`, job);
  return job;
}

function run(job, agent, done) {
  const child = spawn("sh", ["-c", agent.command], { stdio: ["ignore", "pipe", "inherit"] });
  child.stdout.resume();
  replace(`${folder}/jobs/${job.id}.json`, { ...job, status: "running", pid: child.pid });
  child.once("close", (code) => {
    replace(`${folder}/jobs/${job.id}.json`, { ...job, status: code ? "failed" : "completed", finished_at: Date.now() });
    done();
  });
}

const delays = [];
function round() {
  const now = Date.now();
  const started = [];
  for (const schedule of schedules) {
    if (schedule.due > now || schedule.busy) continue;
    schedule.busy = true;
    started.push([schedule, begin(schedule.agent, schedule.key), schedule.due]);
    schedule.due = schedule.every ? now + schedule.every : nextOfCron(schedule.cron, now);
    state[schedule.key] = { last_run_at: now, next_run_at: schedule.due };
  }
  if (started.length === 0) return;
  replace(`${folder}/state.json`, state);
  const committed = Date.now();
  for (const [schedule, job, due] of started) {
    delays.push(committed - due);
    run(job, schedule.agent, () => (schedule.busy = false));
  }
}

process.once("SIGTERM", () => {
  writeFileSync(`${folder}/delays.json`, JSON.stringify(delays));
  process.exit(0);
});
rmSync(socket, { force: true });
const server = createServer((request, response) => {
  const agent = agents.get(request.url.slice(1));
  const job = begin(agent, null);
  response.end(JSON.stringify(job));
  run(job, agent, () => {});
});
server.listen(socket, () => {
  setInterval(round, ROUND_MS);
  console.log("ready");
});
