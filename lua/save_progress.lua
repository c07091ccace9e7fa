-- save_progress: keep the last thing that running handlers said.
-- KEYS  1.. progress, one for each job
-- ARGV  1 life (s)  2.. one value for each job
-- returns how many were kept
for i = 1, #KEYS do redis.call('SET', KEYS[i], ARGV[i + 1], 'EX', ARGV[1]) end
return #KEYS
