-- Every operation of the lock, in one source, so that a server that has forgotten its scripts has forgotten all of them.
--
-- KEYS  1: the counter of fencing tokens; then for each item its key and, but for `renew`, the queue of that key.
-- ARGV  1: the mark that our tokens begin with; 2: how many fencing tokens the items ask for together;
--       3–5: how the caller's waiters are called: channel ('' for not at all), life of a place and call window in ms;
--       then for each item:
--         acquire  token, ttl in ms, size of the block, token to take the key from ('' for none), 1 if a place is wanted
--         renew    token, ttl in ms, size of the block of new fencing tokens (0 for none), ms that were found to be left
--                  and are too many (0 for none)
--         release  token, how long to keep the key in ms (0 to delete it), 1 if the token may have a place
--         inspect
--         force    1 to remove foreign holders too
-- Reply four values for each item: HELD first-fence size 0 | BUSY pttl foreign position | QUEUED position 0 0 |
--       RENEWED pttl first-fence size | RELEASED 0 0 0 | GONE 0 0 0 | ERROR message 0 0; then 1 if PUBLISH was refused.
--
-- A queue is a hash. `first` and `next` bound the tickets; `#ticket` names the token that waits with it; a token's own
-- field is its place: `ticket end life stamp window channel`, times in ms. The stamp says when it was called, or 0.
-- The counter holds `last until`: the last fencing token given out, and the latest end of any place under this counter,
-- in ms: while that has not come, and only then, somebody may be waiting.
--
-- Invariants
-- * A key holds a token or nothing; it is written only if it is free and nobody with a live place comes first, or holds
--   the item's own token (or the one to take it from). Nobody is ever given a lease: who is called takes it.
-- * Per item: reads and checks first, then writes, PUBLISH last, each through pcall where it may be refused, so that an
--   error leaves nothing half done and spoils no other item. (A Lua error would keep what was written before it.)
-- * The counter is written before the key, so that a key is never held without a fencing token of its own.
-- * No clock of a caller is ever read; the server's decides only who may be passed over.

local ERROR, HELD, BUSY, QUEUED, RENEWED, RELEASED, GONE = 0, 1, 2, 3, 4, 5, 6

local got = redis.call('MGET', unpack(KEYS))
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)
-- What does not parse counts as absent: the clock alone keeps the tokens rising.
local last, waiting = string.match(got[1] or '', '^(%d+) (%d+)$')
last, waiting = tonumber(last) or 0, tonumber(waiting) or 0

local mark = ARGV[1]
local written = {} -- what this call has put at a key: a token, or false
local refused = 0
local fence, reserved = 0, -1 -- the numbers that the counter has been raised for
local leads = last > micros + 1000

local function write_counter()
  -- It outlives its lead over the clock: after that, the clock alone is larger.
  local lives = 60000 + math.max(math.ceil((last - micros) / 1000), 0)
  -- Not tostring: it would lose digits.
  local reply = redis.pcall('SET', KEYS[1], string.format('%.0f %.0f', last, waiting), 'PX', lives)
  return reply.err
end

-- Takes a block of fencing tokens: its first, its size, or an error. The counter is raised once for the whole call,
-- unless it runs ahead of the clock: then each item gets one.
local function take_fences(size)
  local together = tonumber(ARGV[2])
  if leads then size, together = 1, 1 end
  if fence + size - 1 > reserved then
    local first = math.max(last + 1, micros)
    last = first + math.max(size, together) - 1
    local failed = write_counter()
    if failed then return nil, nil, failed end
    fence, reserved = first, last
  end
  fence = fence + size
  return fence - size, size
end

-- Gives a token a place at the end of the queue, or keeps the one that it has, uncalled. Returns its position.
local function keep_place(queue, token)
  local found = redis.pcall('HMGET', queue, 'first', 'next', token)
  if found.err then return 0 end
  local ticket = found[3] and tonumber(string.match(found[3], '^%d+'))
  local first = tonumber(found[1])
  local life = tonumber(ARGV[4])
  local place = ' ' .. now + life .. ' ' .. life .. ' 0 ' .. ARGV[5] .. ' ' .. ARGV[3]
  if now + life > waiting then
    waiting = now + life
    if write_counter() then return 0 end
  end
  local reply
  if ticket and first then
    reply = redis.pcall('HSET', queue, token, ticket .. place)
  else
    ticket = tonumber(found[2]) or 1
    first = first or ticket
    reply = redis.pcall(
      'HSET', queue, 'first', first, 'next', ticket + 1, '#' .. ticket, token, token, ticket .. place)
  end
  if type(reply) == 'table' then return 0 end
  redis.pcall('PEXPIREAT', queue, waiting + 1000)
  return ticket - first + 1
end

local function remove_place(queue, token)
  local place = redis.pcall('HGET', queue, token)
  if type(place) == 'string' then
    redis.call('HDEL', queue, token, '#' .. string.match(place, '^%d+'))
    if redis.call('HLEN', queue) <= 2 then redis.call('DEL', queue) end
  end
end

local function has_subscriber(channel)
  if channel == '' then return true end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', channel)
  return reply.err or reply[2] > 0
end

-- Calls the first live place of a free key, unless that is `mine` or it has been called. Places before it are dropped:
-- ended, called longer ago than their window, or without a subscriber. Returns whether somebody comes before `mine`.
local function call_first(queue, key, mine)
  local bounds = redis.pcall('HMGET', queue, 'first', 'next')
  local head, following = tonumber(bounds[1]), tonumber(bounds[2])
  if not head or not following then return false end
  for ticket = head, following - 1 do
    local token = redis.call('HGET', queue, '#' .. ticket)
    if token == mine then
      if ticket > head then redis.pcall('HSET', queue, 'first', ticket) end
      return false
    end
    if token then
      local ends, life, stamp, window, channel = string.match(
        redis.call('HGET', queue, token) or '', '^%d+ (%d+) (%d+) (%d+) (%d+) (.*)$')
      ends, stamp = tonumber(ends) or 0, tonumber(stamp) or 0
      local live = now < ends and ends - now <= tonumber(life)
      if live and stamp > 0 then
        live = stamp <= now and now <= stamp + window and has_subscriber(channel)
      elseif live then
        local heard = 1
        if channel ~= '' then heard = redis.pcall('PUBLISH', channel, token .. ' ' .. key) end
        if type(heard) == 'table' then
          refused = 1
        elseif heard == 0 then
          live = false
        else
          redis.pcall('HSET', queue, token,
            ticket .. ' ' .. ends .. ' ' .. life .. ' ' .. now .. ' ' .. window .. ' ' .. channel)
        end
      end
      if live then
        if ticket > head then redis.pcall('HSET', queue, 'first', ticket) end
        return true
      end
      redis.call('HDEL', queue, token, '#' .. ticket)
    end
  end
  redis.call('DEL', queue)
  return false
end

local function is_foreign(token)
  return string.sub(token, 1, #mark) ~= mark and 1 or 0
end

local replies, r, k, a = {}, 0, 2, 6
local function reply(code, one, two, three)
  replies[r + 1], replies[r + 2], replies[r + 3], replies[r + 4] = code, one or 0, two or 0, three or 0
  r = r + 4
end

while k <= #KEYS do
  local operation, key, queue = ARGV[a], KEYS[k], KEYS[k + 1]
  local token = ARGV[a + 1]
  local held = written[key]
  if held == nil then held = got[k] end

  if operation == 'acquire' then
    local from, wants_place = ARGV[a + 4], ARGV[a + 5] == '1'
    if held == token or (from ~= '' and held == from) or (from == '' and not held) then
      if not held and now < waiting and call_first(queue, key, token) then
        reply(QUEUED, wants_place and keep_place(queue, token))
      else
        local first, size, failed = take_fences(tonumber(ARGV[a + 3]))
        local set
        if failed then
          set = { err = failed }
        elseif held then
          set = redis.pcall('SET', key, token, 'PX', ARGV[a + 2])
        else
          -- MGET shows what is no string as free.
          set = redis.pcall('SET', key, token, 'PX', ARGV[a + 2], 'NX') or { err = 'WRONGTYPE the key holds no string' }
        end
        if set.err then
          reply(ERROR, set.err)
        else
          written[key] = token
          if now < waiting then remove_place(queue, token) end
          reply(HELD, first, size)
        end
      end
    elseif from ~= '' then
      reply(GONE)
    else
      local left = redis.call('PTTL', key)
      reply(BUSY, left, is_foreign(held), wants_place and keep_place(queue, token))
    end
    k, a = k + 2, a + 6

  elseif operation == 'release' then
    if ARGV[a + 3] == '1' and now < waiting then remove_place(queue, token) end
    local failed
    if held == token then
      local after = ARGV[a + 2]
      local done
      if after == '0' then
        done = redis.pcall('DEL', key)
        written[key] = false
      else
        done = redis.pcall('PEXPIRE', key, after)
      end
      failed = type(done) == 'table' and done.err
    end
    if failed then reply(ERROR, failed) else reply(held == token and RELEASED or GONE) end
    if now < waiting and not (written[key] or written[key] == nil and held) then call_first(queue, key) end
    k, a = k + 2, a + 4

  elseif operation == 'renew' then
    -- Works without memory to spare, and never shortens; but for an expiry that the owner has found to be too far ahead
    -- (this clock was set back), if it is still that one.
    if held ~= token then
      reply(GONE)
    else
      local ttl, left = tonumber(ARGV[a + 2]), redis.call('PTTL', key)
      local found = tonumber(ARGV[a + 4])
      local mends = left <= found and left > found - 2000
      local pushed = (left < ttl or mends) and redis.pcall('PEXPIRE', key, ttl)
      if type(pushed) == 'table' then
        reply(ERROR, pushed.err)
      else
        local first, size
        if ARGV[a + 3] ~= '0' then first, size = take_fences(tonumber(ARGV[a + 3])) end
        reply(RENEWED, mends and ttl or math.max(left, ttl), first, size)
      end
    end
    k, a = k + 1, a + 5

  else
    -- What is no string is an error here.
    held = redis.pcall('GET', key)
    if type(held) == 'table' then
      reply(ERROR, held.err)
    elseif operation == 'inspect' then
      if held then reply(BUSY, redis.call('PTTL', key), is_foreign(held)) else reply(GONE) end
    elseif not held or (ARGV[a + 1] == '0' and is_foreign(held) == 1) then
      reply(GONE)
    else
      local done = redis.pcall('DEL', key)
      if type(done) == 'table' then
        reply(ERROR, done.err)
      else
        written[key] = false
        reply(RELEASED)
        if now < waiting then call_first(queue, key) end
      end
    end
    k, a = k + 2, a + (operation == 'force' and 2 or 1)
  end
end
replies[r + 1] = refused
return replies
