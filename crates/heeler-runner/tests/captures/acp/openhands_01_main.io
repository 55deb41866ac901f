# openhands
> {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true},"clientInfo":{"name":"heeler","title":"Heeler","version":"0.0.1"}}}
< {"jsonrpc":"2.0","id":1,"result":{"agentCapabilities":{"loadSession":true,"mcpCapabilities":{"http":true,"sse":true},"promptCapabilities":{"audio":false,"embeddedContext":true,"image":true}},"agentInfo":{"name":"OpenHands CLI ACP Agent","version":"1.16.0"},"authMethods":[{"_meta":{"type":"agent"},"description":"Authenticate through agent","id":"oauth","name":"OAuth with OpenHands Cloud"}],"protocolVersion":1}}
> {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/project","mcpServers":[]}}
< {"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Authentication required","data":{"reason":"Authentication required to create a session"}}}
