-- Every operation of the lock, in one source, so that a server that has forgotten its scripts has forgotten all of them.
--
-- KEYS  1: the counter of fencing tokens; then the key of each item; then the queues of those keys, of all items but
--       `renew`.
-- ARGV  1: how many items; 2: how many fencing tokens they ask for together; or that, the least number that they may
--       begin with, and one to begin with if the clock is behind it by at most 10 ms (0 for none); 3: how the caller's
--       waiters are called: `life window channel`, the life of a place and the call window in ms ('' where nobody may
--       wait); then each item:
--         acquire  token, ttl in ms, size of the block; takes a place where the key is busy
--         try      the same without a place
--         take     the same, from the holder whose token follows
--         renew    token, ttl in ms, size of the block of new fencing tokens (0 for none), ms that were found to be left
--                  and are too many (0 for none)
--         release  token
--         part     token, how long to keep the key in ms (0 to delete it), 1 if the token may have a place, and 2
--                  more if nobody is to be called
--         inspect
--         force    1 to remove foreign holders too
-- Reply for each item: HELD first-fence size | BUSY pttl foreign position | QUEUED position |
--       RENEWED pttl first-fence size | RELEASED | GONE | ERROR message; then 1 if PUBLISH was refused, or 0; and where
--       ARGV[2] has three numbers, TIME in µs.
--
-- A queue is a hash. `first` and `next` bound the tickets; a token's own field is its ticket, and `#ticket` is its place:
-- `token end life stamp window channel`, times in ms. The stamp says when it was called, or 0.
-- The counter holds `last`, the last fencing token given out, or `last until`: until that time in ms, and no longer,
-- somebody may be waiting for a key under this counter.
--
-- Invariants
-- * A key holds a token or nothing; it is written only if it is free and nobody with a live place comes first, or holds
--   the item's own token (or the one to take it from). Nobody is ever given a lease: who is called takes it.
-- * Per item: reads and checks first, then writes, PUBLISH last, each through pcall where it may be refused, so that an
--   error leaves nothing half done and spoils no other item. (A Lua error would keep what was written before it.)
-- * The counter is written before the key, so that a key is never held without a fencing token of its own.
-- * No clock of a caller decides who holds; the server's decides only who may be passed over. (The floor and the
--   aim of a caller, who has seen several nodes, only raise fencing tokens.)
-- Where nobody waits it is four commands for an acquire and two for a release: each costs as much as the rest together.

local ERROR, HELD, BUSY, QUEUED, RENEWED, RELEASED, GONE = 0, 1, 2, 3, 4, 5, 6
local MARK = 'lock-core:1:' -- what our tokens begin with
local call, pcall = redis.call, redis.pcall

local items, fences_asked, floor, aim = tonumber(ARGV[1]), tonumber(ARGV[2])
local alone = fences_asked ~= nil
if not alone then
  fences_asked, floor, aim = string.match(ARGV[2], '^(%d+) (%d+) (%d+)$')
  fences_asked, floor, aim = tonumber(fences_asked), tonumber(floor), tonumber(aim)
  if not (floor < 2 ^ 53) then floor = 0 end -- nor could it be counted from
end
local got = call('MGET', unpack(KEYS, 1, items + 1))
local last, waiting = tonumber(got[1]), 0
if not last then
  last, waiting = string.match(got[1] or '', '^(%d+) (%d+)$')
  last, waiting = tonumber(last) or 0, tonumber(waiting) or 0
elseif not (last >= 0 and last < 2 ^ 53) then
  last = 0 -- what is no such number counts as absent: the clock alone keeps the tokens rising
end
local micros, now = 0, 0
if fences_asked > 0 or waiting > 0 then
  local time = call('TIME')
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
  if waiting <= now then waiting = 0 end
end

-- Most calls are one of these two.
if items == 1 and waiting == 0 and alone then
  local operation, token = ARGV[4], ARGV[5]
  if operation == 'release' and got[2] == token then
    if type(pcall('DEL', KEYS[2])) ~= 'table' then return { RELEASED, 0 } end
  elseif (operation == 'acquire' or operation == 'try') and not got[2] and last < micros then
    local size = fences_asked
    if not pcall('SET', KEYS[1], micros + size - 1, 'PX', '60001').err then
      last = micros + size - 1
      local set = pcall('SET', KEYS[2], token, 'PX', ARGV[6], 'NX')
      if set and not set.err then return { HELD, micros, size, 0 } end
    end
  end
end

local written = {} -- what this call has put at a key: a token, or false
local refused = 0
local fence, reserved = 0, -1 -- the numbers that the counter has been raised for
local LEAD = 1000 -- by how many µs the counter may lead the clock before blocks shrink to one

-- The error in a reply, if it is one, with the command, which Redis 7 leaves out.
local function refusal(reply, command)
  return type(reply) == 'table' and reply.err and reply.err .. ' (' .. command .. ')'
end

local function write_counter()
  -- It outlives its lead over the clock: after that, the clock alone is larger.
  local lives = '60000'
  if last > micros then lives = lives + math.ceil((last - micros) / 1000) end
  local value = last
  if waiting > 0 then value = string.format('%.0f %.0f', last, waiting) end -- not tostring: it would lose digits
  return refusal(pcall('SET', KEYS[1], value, 'PX', lives), 'SET')
end

-- Takes a block of fencing tokens: its first, its size, or an error. The counter is raised once for the whole call,
-- unless it runs ahead of the clock: then each item gets one. A floor counts as the clock, and so does an aim that is near:
-- that of the fastest of several nodes.
local clock = micros
if not alone then
  clock = math.max(clock, floor)
  if aim <= micros + 10000 then clock = math.max(clock, aim) end
end
local function take_fences(size)
  local together = math.min(fences_asked, LEAD)
  if fence + size - 1 > reserved and last > clock + LEAD then size, together = 1, 1 end
  if fence + size - 1 > reserved then
    local first = last < clock and clock or last + 1
    last = first + (size > together and size or together) - 1
    local failed = write_counter()
    if failed then return nil, nil, failed end
    fence, reserved = first, last
  end
  fence = fence + size
  return fence - size, size
end

-- The bounds of a queue, and the ticket that a token has there.
local function look(queue, token)
  local found = pcall('HMGET', queue, 'first', 'next', token)
  return tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
end

-- Gives a token a place at the end of the queue, or keeps the one that it has, uncalled. Returns its position.
local function keep_place(queue, token)
  local life, window, channel = string.match(ARGV[3], '^(%d+) (%d+) (.*)$')
  local ends = now + tonumber(life)
  if ends > waiting then
    -- Somewhat later, so that not every place writes the counter.
    waiting = ends + 500
    if write_counter() then return 0 end
  end
  local first, following, ticket = look(queue, token)
  local place = token .. ' ' .. ends .. ' ' .. life .. ' 0 ' .. window .. ' ' .. channel
  local reply
  if first and ticket then
    -- Positions count from the first who is there still.
    while first < ticket and not call('HGET', queue, '#' .. first) do first = first + 1 end
    reply = pcall('HSET', queue, '#' .. ticket, place, 'first', first)
  else
    ticket = following or 1
    first = first or ticket
    reply = pcall('HSET', queue, 'first', first, 'next', ticket + 1, token, ticket, '#' .. ticket, place)
  end
  if type(reply) == 'table' then return 0 end
  pcall('PEXPIREAT', queue, waiting + 1000)
  return ticket - first + 1
end

-- Removes the place of a token that gives it up.
local function leave(queue, token)
  local _, _, ticket = look(queue, token)
  if ticket then
    pcall('HDEL', queue, token, '#' .. ticket)
    local left = pcall('HLEN', queue)
    if type(left) == 'number' and left <= 2 then pcall('DEL', queue) end
  end
end

local function has_subscriber(channel)
  if channel == '' then return true end
  local reply = pcall('PUBSUB', 'NUMSUB', channel)
  return reply.err or reply[2] > 0
end

-- Whether a place lives, once it has been called if nobody has called it yet.
local function is_called(queue, key, ticket, place)
  local token, ends, life, stamp, window, channel = string.match(place, '^(%S+) (%d+) (%d+) (%d+) (%d+) (.*)$')
  ends, stamp = tonumber(ends) or 0, tonumber(stamp) or 0
  if now >= ends or ends - now > tonumber(life) then return false end
  if stamp > 0 then return stamp <= now and now <= stamp + window and has_subscriber(channel) end
  local heard = 1
  if channel ~= '' then heard = pcall('PUBLISH', channel, token .. ' ' .. key) end
  if type(heard) == 'table' then
    refused = 1
  elseif heard == 0 then
    return false
  else
    local called = token .. ' ' .. ends .. ' ' .. life .. ' ' .. now .. ' ' .. window .. ' ' .. channel
    pcall('HSET', queue, '#' .. ticket, called)
  end
  return true
end

-- Calls the first live place of a free key between two tickets. Those before it are dropped: ended, called longer ago than
-- their window, or without a subscriber. Returns its ticket; without one, the ticket after the last.
local function call_first(queue, key, first, following)
  for ticket = first, following - 1 do
    local place = call('HGET', queue, '#' .. ticket)
    if place then
      if is_called(queue, key, ticket, place) then
        if ticket > first then pcall('HSET', queue, 'first', ticket) end
        return ticket
      end
      call('HDEL', queue, '#' .. ticket, string.match(place, '^%S*'))
    end
  end
  return following
end

local function call_on(queue, key)
  local first, following = look(queue, '')
  if first and following and call_first(queue, key, first, following) == following then call('DEL', queue) end
end

-- Whether a free key may be taken by a token: nobody with a live place comes first. Then its place is removed.
local function passes(queue, key, token)
  local first, following, ticket = look(queue, token)
  if not first or not following then return true end
  local mine = ticket or following
  if mine > first and call_first(queue, key, first, mine) < mine then return false end
  if not ticket then call('DEL', queue) end -- nobody lives there
  return true, mine + 1 < following, ticket
end

local function is_foreign(token)
  return string.sub(token, 1, #MARK) ~= MARK and 1 or 0
end

local replies, r = {}, 0
local function reply(code, one, two, three)
  replies[r + 1], replies[r + 2], replies[r + 3], replies[r + 4] = code, one, two, three
  r = r + (three and 4 or two and 3 or one and 2 or 1)
end

local a, q = 4, items + 1
for k = 2, items + 1 do
  local operation, token, key = ARGV[a], ARGV[a + 1], KEYS[k]
  local queue
  if operation ~= 'renew' then
    q = q + 1
    queue = KEYS[q]
  end
  local held = written[key]
  if held == nil then held = got[k] end

  if operation == 'acquire' or operation == 'try' or operation == 'take' then
    local may_take, others_wait, ticket
    if operation == 'take' then
      may_take = held == token or held == ARGV[a + 4]
    else
      may_take = not held or held == token
    end
    if not may_take then
      if operation == 'take' then
        reply(GONE)
      else
        local left = call('PTTL', key)
        reply(BUSY, left, is_foreign(held), operation == 'acquire' and keep_place(queue, token) or 0)
      end
    else
      if not held and waiting > 0 then may_take, others_wait, ticket = passes(queue, key, token) end
      if not may_take then
        reply(QUEUED, operation == 'acquire' and keep_place(queue, token) or 0)
      else
        local first, size, failed = take_fences(tonumber(ARGV[a + 3]))
        local set
        if failed then
          set = { err = failed }
        elseif held then
          local ttl = ARGV[a + 2]
          -- It may be late, and the lease extended since.
          if held == token then ttl = math.max(ttl, call('PTTL', key)) end
          set = pcall('SET', key, token, 'PX', ttl)
        else
          -- MGET shows what is no string as free.
          set = pcall('SET', key, token, 'PX', ARGV[a + 2], 'NX') or { err = 'WRONGTYPE the key holds no string' }
        end
        if set.err then
          reply(ERROR, failed or refusal(set, 'SET'))
        else
          written[key] = token
          if held and waiting > 0 then
            leave(queue, token)
          elseif ticket and others_wait then
            pcall('HDEL', queue, token, '#' .. ticket)
            pcall('HSET', queue, 'first', ticket + 1)
          elseif ticket then
            pcall('DEL', queue)
          end
          reply(HELD, first, size)
        end
      end
    end
    a = a + (operation == 'take' and 5 or 4)

  elseif operation == 'release' or operation == 'part' then
    local after, quiet = '0', false
    if operation == 'part' then
      after = ARGV[a + 2]
      local ways = tonumber(ARGV[a + 3])
      quiet = ways >= 2
      if ways % 2 == 1 and waiting > 0 then leave(queue, token) end
      a = a + 2
    end
    a = a + 2
    local failed
    if held == token then
      local done
      if after == '0' then
        done = pcall('DEL', key)
        written[key] = false
        held = false
      else
        done = pcall('PEXPIRE', key, after)
      end
      failed = refusal(done, after == '0' and 'DEL' or 'PEXPIRE')
      if failed then reply(ERROR, failed) else reply(RELEASED) end
    else
      reply(GONE)
    end
    if waiting > 0 and not held and not quiet then call_on(queue, key) end

  elseif operation == 'renew' then
    -- Works without memory to spare, and never shortens; but for an expiry that the owner has found to be too far ahead
    -- (this clock was set back), if it is still that one.
    if held ~= token then
      reply(GONE)
    else
      local ttl, left = tonumber(ARGV[a + 2]), call('PTTL', key)
      local found = tonumber(ARGV[a + 4])
      local mends = left <= found and left > found - 2000
      local pushed = (left < ttl or mends) and pcall('PEXPIRE', key, ttl)
      if type(pushed) == 'table' then
        reply(ERROR, refusal(pushed, 'PEXPIRE'))
      else
        local first, size = 0, 0
        if ARGV[a + 3] ~= '0' then first, size = take_fences(tonumber(ARGV[a + 3])) end
        reply(RENEWED, mends and ttl or math.max(left, ttl), first or 0, size or 0)
      end
    end
    a = a + 5

  else
    -- What is no string is an error here.
    held = pcall('GET', key)
    if type(held) == 'table' then
      reply(ERROR, refusal(held, 'GET'))
    elseif operation == 'inspect' then
      if held then reply(BUSY, call('PTTL', key), is_foreign(held), 0) else reply(GONE) end
    elseif not held or (token == '0' and is_foreign(held) == 1) then
      reply(GONE)
    else
      local done = pcall('DEL', key)
      if type(done) == 'table' then
        reply(ERROR, refusal(done, 'DEL'))
      else
        written[key] = false
        reply(RELEASED)
        if waiting > 0 then call_on(queue, key) end
      end
    end
    a = a + (operation == 'force' and 2 or 1)
  end
end
replies[r + 1] = refused
if not alone then replies[r + 2] = micros end
return replies
