# cmd: cline --json 'go MOCK[{"text":"I run","sh":"touch a.txt && echo made"},{"text":"done"}]'
# exit: 0  wall: 8.23s
   5.877 < {"ts":"2026-11-16T11:18:28.800Z","type":"hook_event","hookEventName":"agent_start","agentId":"agent_1794827908587_ahlyqf","taskId":"conv_1794827908705_eo8ylob","parentAgentId":null}
   5.925 < {"ts":"2026-11-16T11:18:28.844Z","type":"agent_event","event":{"type":"iteration_start","iteration":1}}
   6.221 < {"ts":"2026-11-16T11:18:29.144Z","type":"agent_event","event":{"type":"content_start","contentType":"text","text":"I run"}}
   6.280 < {"ts":"2026-11-16T11:18:29.204Z","type":"agent_event","event":{"type":"usage","inputTokens":100,"outputTokens":20,"cacheReadTokens":0,"cacheWriteTokens":0,"cost":0,"totalInputTokens":100,"totalOutputTokens":20,"totalCacheReadTokens":0,"totalCacheWriteTokens":0,"totalCost":0}}
   6.335 < {"ts":"2026-11-16T11:18:29.264Z","type":"agent_event","event":{"type":"content_end","contentType":"text","text":"I run"}}
   6.372 < {"ts":"2026-11-16T11:18:29.301Z","type":"hook_event","hookEventName":"tool_call","agentId":"agent_1794827908587_ahlyqf","taskId":"conv_1794827908705_eo8ylob","parentAgentId":null}
   6.401 < {"ts":"2026-11-16T11:18:29.330Z","type":"agent_event","event":{"type":"content_start","contentType":"tool","toolCallId":"call_s0_8a9f036024544616","toolName":"run_commands","input":{"commands":["touch a.txt && echo made"]}}}
   6.457 < {"ts":"2026-11-16T11:18:29.381Z","type":"agent_event","event":{"type":"content_update","contentType":"tool","toolCallId":"call_s0_8a9f036024544616","toolName":"run_commands","update":{"stream":"stdout","chunk":"","executionId":"42f08112-b0bf-47d1-90b1-c16834120864","detachable":false,"commandIndex":0,"query":"touch a.txt && echo made"}}}
   6.457 < {"ts":"2026-11-16T11:18:29.382Z","type":"agent_event","event":{"type":"content_update","contentType":"tool","toolCallId":"call_s0_8a9f036024544616","toolName":"run_commands","update":{"stream":"stdout","chunk":"made\n","executionId":"42f08112-b0bf-47d1-90b1-c16834120864","detachable":false,"commandIndex":0,"query":"touch a.txt && echo made"}}}
   6.465 < {"ts":"2026-11-16T11:18:29.389Z","type":"hook_event","hookEventName":"tool_result","agentId":"agent_1794827908587_ahlyqf","taskId":"conv_1794827908705_eo8ylob","parentAgentId":null}
   6.465 < {"ts":"2026-11-16T11:18:29.391Z","type":"agent_event","event":{"type":"content_end","contentType":"tool","toolCallId":"call_s0_8a9f036024544616","toolName":"run_commands","output":[{"query":"touch a.txt && echo made","result":"made\n","success":true}]}}
   6.520 < {"ts":"2026-11-16T11:18:29.447Z","type":"agent_event","event":{"type":"iteration_end","iteration":1,"hadToolCalls":true,"toolCallCount":1}}
   6.559 < {"ts":"2026-11-16T11:18:29.487Z","type":"agent_event","event":{"type":"iteration_start","iteration":2}}
   6.658 < {"ts":"2026-11-16T11:18:29.582Z","type":"agent_event","event":{"type":"content_start","contentType":"text","text":"done"}}
   6.658 < {"ts":"2026-11-16T11:18:29.583Z","type":"agent_event","event":{"type":"usage","inputTokens":100,"outputTokens":20,"cacheReadTokens":0,"cacheWriteTokens":0,"cost":0,"totalInputTokens":200,"totalOutputTokens":40,"totalCacheReadTokens":0,"totalCacheWriteTokens":0,"totalCost":0}}
   6.709 < {"ts":"2026-11-16T11:18:29.632Z","type":"agent_event","event":{"type":"content_end","contentType":"text","text":"done"}}
   6.737 < {"ts":"2026-11-16T11:18:29.665Z","type":"agent_event","event":{"type":"iteration_end","iteration":2,"hadToolCalls":false,"toolCallCount":0}}
   6.805 < {"ts":"2026-11-16T11:18:29.727Z","type":"hook_event","hookEventName":"agent_end","agentId":"agent_1794827908587_ahlyqf","taskId":"conv_1794827908705_eo8ylob","parentAgentId":null}
   6.859 < {"ts":"2026-11-16T11:18:29.789Z","type":"agent_event","event":{"type":"done","reason":"completed","text":"done","iterations":2,"usage":{"inputTokens":200,"outputTokens":40,"cacheReadTokens":0,"cacheWriteTokens":0,"totalCost":0}}}
   7.018 < {"ts":"2026-11-16T11:18:29.942Z","type":"run_result","finishReason":"completed","iterations":2,"usage":{"inputTokens":200,"outputTokens":40,"cacheReadTokens":0,"cacheWriteTokens":0,"totalCost":0},"aggregateUsage":{"inputTokens":200,"outputTokens":40,"cacheReadTokens":0,"cacheWriteTokens":0,"totalCost":0},"durationMs":1075,"text":"done","model":{"id":"mock-model","provider":"openai-compatible"}}
