SHADOW = True
