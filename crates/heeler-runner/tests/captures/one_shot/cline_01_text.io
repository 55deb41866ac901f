# cmd: cline --json 'hello MOCK[{"thinking":"hmm","text":"hi there"}]'
# exit: 0  wall: 6.69s
   4.866 < {"ts":"2026-11-16T11:18:21.105Z","type":"hook_event","hookEventName":"agent_start","agentId":"agent_1794827901032_6uv218","taskId":"conv_1794827901082_6x731mb","parentAgentId":null}
   4.878 < {"ts":"2026-11-16T11:18:21.118Z","type":"agent_event","event":{"type":"iteration_start","iteration":1}}
   5.392 < {"ts":"2026-11-16T11:18:21.631Z","type":"agent_event","event":{"type":"content_start","contentType":"reasoning","reasoning":"hmm","redacted":false}}
   5.409 < {"ts":"2026-11-16T11:18:21.649Z","type":"agent_event","event":{"type":"content_start","contentType":"text","text":"hi there","accumulated":"hi there"}}
   5.445 < {"ts":"2026-11-16T11:18:21.684Z","type":"agent_event","event":{"type":"usage","inputTokens":100,"outputTokens":20,"totalInputTokens":100,"totalOutputTokens":20,"totalCost":0}}
   5.453 < {"ts":"2026-11-16T11:18:21.693Z","type":"agent_event","event":{"type":"content_end","contentType":"text","text":"hi there"}}
   5.465 < {"ts":"2026-11-16T11:18:21.702Z","type":"agent_event","event":{"type":"content_end","contentType":"reasoning","reasoning":"hmm"}}
   5.468 < {"ts":"2026-11-16T11:18:21.707Z","type":"agent_event","event":{"type":"iteration_end","iteration":1,"hadToolCalls":false,"toolCallCount":0}}
   5.472 < {"ts":"2026-11-16T11:18:21.712Z","type":"hook_event","hookEventName":"agent_end","agentId":"agent_1794827901032_6uv218","taskId":"conv_1794827901082_6x731mb","parentAgentId":null}
   5.480 < {"ts":"2026-11-16T11:18:21.719Z","type":"agent_event","event":{"type":"done","reason":"completed","text":"hi there","iterations":1,"usage":{"inputTokens":100,"outputTokens":20,"totalCost":0}}}
   5.498 E Warning: AI SDK Warning System: To turn off warning logging, set the AI_SDK_LOG_WARNINGS global to false.
   5.498 E       at iX (/$bunfs/base/home/chunk-c152qqqg.js:26:46952)
   5.498 E       at J0 (/$bunfs/base/home/chunk-c152qqqg.js:26:47138)
   5.498 E       at transform (/$bunfs/base/home/chunk-c152qqqg.js:44:43027)
   5.498 E
   5.498 E DeprecationWarning: AI SDK Warning (openai-compatible.chat / mock-model): Deprecated: "providerOptions key 'openai-compatible'". Use 'openaiCompatible' instead.
   5.498 E       at iX (/$bunfs/base/home/chunk-c152qqqg.js:26:46952)
   5.498 E       at J0 (/$bunfs/base/home/chunk-c152qqqg.js:26:47251)
   5.498 E       at transform (/$bunfs/base/home/chunk-c152qqqg.js:44:43027)
   5.498 E
   5.498 E DeprecationWarning: AI SDK Warning (openai-compatible.chat / mock-model): Deprecated: "providerOptions key 'openai-compatible'". Use 'openaiCompatible' instead.
   5.498 E       at iX (/$bunfs/base/home/chunk-c152qqqg.js:26:46952)
   5.498 E       at J0 (/$bunfs/base/home/chunk-c152qqqg.js:26:47251)
   5.498 E       at transform (/$bunfs/base/home/chunk-c152qqqg.js:44:43027)
   5.498 E
   5.593 < {"ts":"2026-11-16T11:18:21.832Z","type":"run_result","finishReason":"completed","iterations":1,"usage":{"inputTokens":100,"outputTokens":20,"cacheReadTokens":0,"cacheWriteTokens":0,"totalCost":0},"aggregateUsage":{"inputTokens":100,"outputTokens":20,"cacheReadTokens":0,"cacheWriteTokens":0,"totalCost":0},"durationMs":635,"text":"hi there","model":{"id":"mock-model","provider":"openai-compatible"}}
