// Reads and parses a whole session file and writes the lines up to the middle, as a fork does.
// Prints seconds.
import { readFile, writeFile, unlink } from "node:fs/promises";
const [, , file] = process.argv;
const start = performance.now();
const lines = (await readFile(file, "utf8")).split("\n").filter((line) => line);
const rows = lines.map((line) => JSON.parse(line));
const copy = `${file}.fork`;
await writeFile(copy, rows.slice(0, rows.length / 2).map((row) => JSON.stringify(row)).join("\n"));
console.log((performance.now() - start) / 1e3);
await unlink(copy);
