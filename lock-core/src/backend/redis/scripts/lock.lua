-- Every operation of the lock, in one source, so that a server that has forgotten its scripts has forgotten all of them.
--
-- KEYS  1: the counter of fencing tokens; 1 + i: the key of item i.
-- ARGV  1: the mark that our tokens begin with; then five for each item:
--       operation, token, ttl in ms (of a release: how long to keep the key, 0 to delete it), size of the block, token to
--       take the key from ('' for none).
-- Reply one array per item: {'held', first fencing token, size}, {'busy', PTTL, 1 if foreign}, {'renewed', PTTL},
--       {'released'}, {'gone'}, {'error', message}.
--
-- Invariants
-- * The key of an item holds a token or nothing; it is never written unless it held the item's own token (or the one to
--   take it from), or was free.
-- * Per item: reads and checks first, writes last, through pcall, so that an error leaves nothing half done and spoils
--   no other item. (A Lua error would keep what was written before it.)
-- * The counter holds 'last until': the last fencing token given out, and a moment that the queue will use. It is
--   written before the key, so that a key is never held without a token of its own.

local mark = ARGV[1]
local now, last, waiting_until

-- The clock and the counter, read once a call.
local function read_counter()
  if now then return nil end
  local value = redis.pcall('GET', KEYS[1])
  if type(value) == 'table' then return value.err end
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
  -- What does not parse counts as absent: the clock alone keeps the tokens rising.
  local first, second = string.match(value or '', '^(%d+) (%d+)$')
  last, waiting_until = tonumber(first) or 0, tonumber(second) or 0
  return nil
end

local function write(...)
  local reply = redis.pcall(...)
  return type(reply) == 'table' and reply.err or nil
end

local function is_foreign(token)
  return string.sub(token, 1, #mark) ~= mark and 1 or 0
end

local operations = {}

function operations.acquire(key, held, token, ttl, block, from)
  local takes = not held and from == '' or held and (held == token or held == from)
  if not takes then
    if from ~= '' then return {'gone'} end
    return {'busy', redis.call('PTTL', key), is_foreign(held)}
  end
  local failed = read_counter()
  if failed then return {'error', failed} end
  local first = math.max(last + 1, now)
  local newest = first + block - 1
  -- The counter outlives its lead over the clock: after that, the clock alone is larger.
  local lives = 60000 + math.ceil(math.max(newest - now, 0) / 1000)
  -- Not tostring: it would lose digits.
  failed = write('SET', KEYS[1], string.format('%.0f %.0f', newest, waiting_until), 'PX', lives)
  if failed then return {'error', failed} end
  last = newest
  failed = write('SET', key, token, 'PX', ttl)
  if failed then return {'error', failed} end
  return {'held', first, block}
end

-- Works without memory to spare, and never shortens.
function operations.renew(key, held, token, ttl)
  if held ~= token then return {'gone'} end
  local left = redis.call('PTTL', key)
  if left < ttl then
    local failed = write('PEXPIRE', key, ttl)
    if failed then return {'error', failed} end
    left = ttl
  end
  return {'renewed', left}
end

local function delete(key)
  local failed = write('DEL', key)
  if failed then return {'error', failed} end
  return {'released'}
end

function operations.release(key, held, token, after)
  if held ~= token then return {'gone'} end
  if after == 0 then return delete(key) end
  local failed = write('PEXPIRE', key, after)
  if failed then return {'error', failed} end
  return {'released'}
end

function operations.inspect(key, held)
  if not held then return {'gone'} end
  return {'busy', redis.call('PTTL', key), is_foreign(held)}
end

-- Whoever holds it; foreign holders too where the block is 1.
function operations.force(key, held, _, _, foreign_too)
  if not held or (foreign_too == 0 and is_foreign(held) == 1) then return {'gone'} end
  return delete(key)
end

local replies = {}
for item = 1, #KEYS - 1 do
  local key, argument = KEYS[1 + item], 1 + (item - 1) * 5
  local held = redis.pcall('GET', key)
  if type(held) == 'table' then
    replies[item] = {'error', held.err}
  else
    local operation = operations[ARGV[argument + 1]]
    replies[item] = operation(
      key, held, ARGV[argument + 2], tonumber(ARGV[argument + 3]), tonumber(ARGV[argument + 4]), ARGV[argument + 5])
  end
end
return replies
