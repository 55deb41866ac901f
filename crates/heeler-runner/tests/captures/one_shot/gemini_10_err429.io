# cmd: gemini -p 'err MOCK[{"error":429,"message":"mock says 429"}]' -o stream-json
# exit: 173  wall: 9.48s
   4.879 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   4.879 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   4.971 E Ripgrep is not available. Falling back to GrepTool.
   4.971 E [STARTUP] Phase 'cleanup_ops' was started but never ended. Skipping metrics.
   4.971 E [STARTUP] Cannot measure phase 'cleanup_ops': start mark 'startup:cleanup_ops:start' not found (likely cleared by reset).
   4.982 < {"type":"init","timestamp":"2026-11-16T10:57:51.229Z","session_id":"e1c0a365-af1e-451d-97a4-f2c453a217df","model":"auto"}
   4.982 < {"type":"message","timestamp":"2026-11-16T10:57:51.232Z","role":"user","content":"err MOCK[{\"error\":429,\"message\":\"mock says 429\"}]"}
   5.056 E Attempt 1 failed with status 429. Retrying with backoff... _ApiError: {"error":{"code":429,"message":"mock says 429","status":"RESOURCE_EXHAUSTED"}}
   5.056 E     at throwErrorIfNotOK (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:267833:24)
   5.056 E     at process.processTicksAndRejections (node:internal/process/task_queues:104:5)
   5.056 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:267596:7
   5.056 E     at async Models.generateContentStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:268692:16)
   5.056 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:311457:19
   5.056 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:288018:23
   5.056 E     at async retryWithBackoff (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:308039:23)
   5.056 E     at async GeminiChat.makeApiCallAndProcessStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332326:28)
   5.056 E     at async GeminiChat.streamWithRetries (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332079:29)
   5.056 E     at async Turn.run (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:333001:24) {
   5.056 E   status: 429
   5.056 E }
   9.207 E Attempt 2 failed: mock says 429. Max attempts reached
   9.222 E Error when talking to Gemini API Full report available at: /base/tmp/gemini-client-error-Turn.run-sendMessageStream-2026-11-16T10-57-55-468Z.json RetryableQuotaError: mock says 429
   9.222 E     at classifyGoogleError (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:307333:14)
   9.222 E     at retryWithBackoff (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:308062:29)
   9.222 E     at process.processTicksAndRejections (node:internal/process/task_queues:104:5)
   9.222 E     at async GeminiChat.makeApiCallAndProcessStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332326:28)
   9.222 E     at async GeminiChat.streamWithRetries (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:332079:29)
   9.222 E     at async Turn.run (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:333001:24)
   9.222 E     at async GeminiClient.processTurn (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:346675:22)
   9.222 E     at async GeminiClient.sendMessageStream (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/chunk-JDPZ4CE3.js:346772:14)
   9.222 E     at async file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/gemini-3HFX2LNT.js:12198:26
   9.222 E     at async main (file:///base/npm/gemini/node_modules/@google/gemini-cli/bundle/gemini-3HFX2LNT.js:17627:5) {
   9.222 E   cause: { code: 429, message: 'mock says 429', details: [] },
   9.222 E   retryDelayMs: undefined,
   9.222 E   status: 429
   9.222 E }
   9.224 < {"type":"result","timestamp":"2026-11-16T10:57:55.480Z","status":"error","error":{"type":"unknown","message":"[API Error: mock says 429]\nPlease wait and try again later. To increase your limits, request a quota increase through AI Studio, or switch to another /auth method"},"stats":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100,"duration_ms":0,"tool_calls":0,"models":{"gemini-3.5-flash-lite":{"total_tokens":120,"input_tokens":100,"output_tokens":20,"cached":0,"input":100},"gemini-3.8-flash":{"total_tokens":0,"input_tokens":0,"output_tokens":0,"cached":0,"input":0}}}}
