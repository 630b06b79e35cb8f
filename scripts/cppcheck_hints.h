/* Included by cppcheck before every file: macros from libraries that it cannot guess. */
#define json_array_foreach(list, i, value) for (i = 0; (value = json_array_get(list, i)); i++)
#define json_object_foreach(object, key, value) for (key = first(object); (value = next(object)); key = first(object))
