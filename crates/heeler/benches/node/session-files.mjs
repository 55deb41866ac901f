// Parses every session file of a folder and takes those used last, as a list does. Prints seconds,
// from the start of the process.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
const [, , folder, n] = process.argv;
const sessions = [];
for (const name of await readdir(folder)) {
  if (name.endsWith(".json")) sessions.push(JSON.parse(await readFile(join(folder, name), "utf8")));
}
sessions.sort((a, b) => (a.last_active_at < b.last_active_at ? 1 : -1));
if (sessions.slice(0, Number(n)).length !== Number(n)) throw new Error("too few sessions");
console.log(performance.now() / 1e3);
