# goose
> {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true},"clientInfo":{"name":"heeler","title":"Heeler","version":"0.0.1"}}}
< {"jsonrpc":"2.0","result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"promptCapabilities":{"image":true,"audio":false,"embeddedContext":true},"mcpCapabilities":{"http":true,"sse":false},"sessionCapabilities":{"list":{},"close":{}},"auth":{}},"authMethods":[{"id":"goose-provider","name":"Configure Provider","description":"Run `goose configure` to set up your AI provider and API key"}]},"id":1}
> {"jsonrpc":"2.0","id":2,"method":"session/resume","params":{"sessionId":"20261116_1","cwd":"/project","mcpServers":[]}}
< {"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":2}
> {"jsonrpc":"2.0","id":3,"method":"session/load","params":{"sessionId":"00000000-0000-4000-8000-000000000000","cwd":"/project","mcpServers":[]}}
< {"jsonrpc":"2.0","error":{"code":-32002,"message":"Resource not found","data":"Session not found: 00000000-0000-4000-8000-000000000000"},"id":3}
> {"jsonrpc":"2.0","id":4,"method":"session/close","params":{"sessionId":"20261116_1"}}
< {"jsonrpc":"2.0","result":{},"id":4}
