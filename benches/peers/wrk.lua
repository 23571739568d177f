-- The request of a case, from variables; at the end the figures as one line of JSON.
local file = io.open(os.getenv("PEERS_BODY"), "rb")
wrk.method, wrk.body = "POST", file:read("*a")
file:close()
for name, value in os.getenv("PEERS_HEADERS"):gmatch("([^\n:]+): ([^\n]+)") do wrk.headers[name] = value end

done = function(summary, latency)
  local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
  io.write(string.format('\n{"seconds": %f, "requests": %d, "refused": %d, "failed": %d, "p50": %f, "p99": %f}\n',
    summary.duration / 1e6, summary.requests, summary.errors.status, failed,
    latency:percentile(50) / 1e6, latency:percentile(99) / 1e6))
end
