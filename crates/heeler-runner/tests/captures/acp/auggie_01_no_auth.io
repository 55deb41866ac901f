# auggie
> {"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{"fs":{"readTextFile":true,"writeTextFile":true},"terminal":true},"clientInfo":{"name":"heeler","title":"Heeler","version":"0.0.1"}}}
< {"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true,"promptCapabilities":{"image":true},"sessionCapabilities":{"list":{}}},"agentInfo":{"name":"auggie","title":"Auggie Agent","version":"0.36.0 (commit 7c61e5bb)"},"authMethods":[]}}
> {"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/project","mcpServers":[]}}
< {"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Authentication required: Auggie does not currently support authenticating over ACP. Please run `auggie login` from your terminal then try again."}}
