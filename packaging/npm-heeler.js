#!/usr/bin/env node
// Starts the program of the package for this system, such as @heeler/linux-x64.
"use strict";

const { spawn } = require("node:child_process");

const platform = `@heeler/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${platform}/bin/heeler`);
} catch {
  console.error(
    `heeler: the package ${platform} is not installed.\n` +
      "Heeler has packages for Linux on x64 and arm64. If this is such a system, optional\n" +
      "dependencies were left out: npm install heeler --include=optional",
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends these to the program itself. Node.js must stay until it has ended.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
// Supervisors send these to Node.js only.
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`heeler: cannot start ${program}: ${error.message}`);
  process.exit(1);
});
child.on("exit", (status, signal) => {
  if (signal === null) process.exit(status);
  // Ends as the program did, so that a shell sees the signal.
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
