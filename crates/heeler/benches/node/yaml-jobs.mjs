// Parses every job YAML of a folder and sorts by start, as a first listing does. Prints seconds.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { parse } from "yaml";
const [, , folder] = process.argv;
const start = process.hrtime.bigint();
const jobs = [];
for (const name of await readdir(folder)) {
  if (name.endsWith(".yaml")) jobs.push(parse(await readFile(join(folder, name), "utf8")));
}
jobs.sort((a, b) => (a.started_at < b.started_at ? 1 : -1));
if (jobs.slice(0, 20).length !== 20) throw new Error("too few jobs");
console.log(Number(process.hrtime.bigint() - start) / 1e9);
